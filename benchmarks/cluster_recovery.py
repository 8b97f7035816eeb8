"""Measures on a cluster how long the streams of an OrcaDeployment pause when a container, a pod or all pods end.

    python benchmarks/cluster_recovery.py [--streams 8] [--tokens 600] [--rounds 3] [--only NAME] [--folder DIR]

Run it as root on the node of a cluster with one node, the operator and the images. It deploys the demo model on two
partitions in float32, with the journal on a PersistentVolume in DIR. In each round it kills the container of each
worker and of the master, deletes each pod by force, and deletes all pods by force (a whole restart). Meanwhile every
client reads one seeded stream after the other through the Service, and continues a lost one by request id and
Last-Event-ID; one more client sends requests of one token, one after the other. The result is a table: the longest
pause between two events of each client, the longest time between two answers to requests of one token, and how many
streams had the tokens of the undisturbed run. The clients share the machine with the cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml
from operator_cost import EXAMPLE, kubectl, until
from orca_bench.circumstances import circumstances, line
from orca_bench.options import positive
from recovery import TOKENS_BEFORE, Transcript

NAME = "recovery"
POD_USER = 10001
RETRY_SECONDS = 0.05
ROUND_SECONDS = 300.0
SETTLE_SECONDS = 10.0
"""From the recovery to the next victim: the workers start their spare ranks meanwhile."""
TIMEOUT = httpx.Timeout(60.0, connect=1.0)
KILL = "kill -9 $(cat /proc/1/task/1/children)"
"""Ends the container's main process, the child of its init process."""

Pods = dict[str, tuple[str, bool]]
"""Identity of the container (pod uid and restarts) and readiness, by the name of the pod."""


def pods() -> Pods:
    """Return the pods of the OrcaDeployment that are not being deleted."""
    found: Pods = {}
    for pod in json.loads(kubectl("get", "pods", "-l", f"orca-serving.io/deployment={NAME}", "-o", "json"))["items"]:
        status = pod["status"]
        restarts = sum(entry["restartCount"] for entry in status.get("containerStatuses", []))
        ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in status.get("conditions", []))
        if "deletionTimestamp" not in pod["metadata"]:
            found[pod["metadata"]["name"]] = (f"{pod['metadata']['uid']} {restarts}", ready)
    return found


def victims() -> dict[str, tuple[Callable[[Pods], list[str]], bool]]:
    """Return for each victim the function that chooses its pods, and whether they are deleted or killed inside."""
    parts: dict[str, Callable[[Pods], list[str]]] = {
        "worker of partition 0": lambda found: [name for name in found if "-p0-" in name],
        "worker of partition 1": lambda found: [name for name in found if "-p1-" in name],
        "master": lambda found: [name for name in found if "-master-" in name],
    }
    chosen = {f"container killed: {part}": (choose, False) for part, choose in parts.items()}
    chosen |= {f"pod deleted by force: {part}": (choose, True) for part, choose in parts.items()}
    return chosen | {"all pods deleted by force (whole restart)": (list, True)}


def end(names: list[str], delete: bool) -> None:
    """Delete pods by force, or kill the main processes of their containers."""
    if delete:
        kubectl("delete", "pod", *names, "--force", "--grace-period=0")
        return
    for name in names:  # the shell ends with its container, so kubectl fails
        subprocess.run(["kubectl", "exec", name, "--", "sh", "-c", KILL], capture_output=True, check=False)


class LostRequestError(Exception):
    """The master does not know an accepted request."""


@dataclass(slots=True)
class Client:
    """Reads the stream of one seed again and again. `times`: of all events, in seconds of the monotonic clock."""

    http: httpx.AsyncClient
    seed: int
    num_tokens: int
    times: list[float] = field(default_factory=list)
    streams: list[list[int]] = field(default_factory=list)
    num_resumed: int = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Read at least one stream, and others until `stop` is set."""
        while not self.streams or not stop.is_set():
            await self._read()

    async def _read(self) -> None:
        transcript = Transcript()
        body = {"prompt": [self.seed + 1, 2, 3], "max_tokens": self.num_tokens, "ignore_eos": True, "stream": True,
                "temperature": 0.8, "seed": self.seed, "return_token_ids": True}  # fmt: skip
        while not transcript.done:
            asking = self.http.stream("POST", "/v1/completions", json=body)
            if transcript.request_id:
                self.num_resumed += 1
                headers = {"Accept": "text/event-stream", "Last-Event-ID": transcript.last_event}
                asking = self.http.stream("GET", f"/v1/requests/{transcript.request_id}", headers=headers)
            try:
                async with asking as answer:
                    # Without a body the 404 is of a router on the way, while the Service has no endpoint.
                    if answer.status_code == 404 and (body_of_404 := await answer.aread()):
                        raise LostRequestError(body_of_404.decode())
                    async for text in answer.aiter_lines():
                        known = len(transcript.times)
                        transcript.take(text)
                        self.times += transcript.times[known:]
            except httpx.TransportError:
                pass
            if not transcript.done:
                await asyncio.sleep(RETRY_SECONDS)
        self.streams.append(transcript.tokens)


async def ask_again_and_again(http: httpx.AsyncClient, times: list[float]) -> None:
    """Send requests of one token, one after the other; note the time of each answer."""
    while True:
        try:
            answer = await http.post("/v1/completions", json={"prompt": [1], "max_tokens": 1})
            if answer.status_code == 200:
                times.append(time.monotonic())
        except httpx.TransportError:
            pass
        await asyncio.sleep(RETRY_SECONDS)


def longest_gap(times: list[float], since: float) -> float:
    """Return the longest time between two neighbours of which the later is after `since`, in seconds."""
    pairs = itertools.pairwise(times)
    return max((later - earlier for earlier, later in pairs if later > since), default=float("nan"))


async def play(url: str, settings: argparse.Namespace, victim: Callable[[], None]) -> tuple[list[Client], float, float]:
    """Run the clients, call `victim` in another thread, and end the clients when all of them have had events after it.

    Returns the clients, the time at which `victim` was called, and the longest time without an answer to a request of
    one token. `victim` returns when all pods are ready again.
    """
    stop, answered = asyncio.Event(), list[float]()
    async with (
        asyncio.timeout(ROUND_SECONDS),
        httpx.AsyncClient(base_url=url, timeout=TIMEOUT, trust_env=False) as http,
        asyncio.TaskGroup() as tasks,
    ):
        clients = [Client(http, seed, settings.tokens) for seed in range(settings.streams)]
        prober = tasks.create_task(ask_again_and_again(http, answered))
        reading = [tasks.create_task(client.run(stop)) for client in clients]
        while any(len(client.times) < TOKENS_BEFORE for client in clients) or not answered:
            await asyncio.sleep(0.01)
        ended_at = time.monotonic()
        await asyncio.to_thread(victim)
        recovered_at = time.monotonic()
        while any(client.times[-1] < recovered_at for client in clients) or answered[-1] < recovered_at:
            await asyncio.sleep(0.01)
        stop.set()
        await asyncio.gather(*reading)
        prober.cancel()
    return clients, ended_at, longest_gap(answered, ended_at)


def end_and_wait(choose: Callable[[Pods], list[str]], delete: bool) -> None:
    """End the chosen pods or containers, and wait until others have taken their place and all are ready."""
    before = pods()
    names = choose(before)
    gone = {before[name][0] for name in names}
    end(names, delete)

    def replaced() -> bool:
        now = pods().values()
        return len(now) == len(before) and all(ready and identity not in gone for identity, ready in now)

    until(replaced, 0.2)


@contextmanager
def deployed(folder: Path) -> Iterator[str]:
    """Deploy the demo with its journal in a folder of this node; yield the URL of the Service."""
    folder.mkdir(parents=True)
    os.chown(folder, POD_USER, POD_USER)  # the kubelet does not change the owner of a hostPath
    storage: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    volume = storage | {"capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}}
    claim = storage | {"volumeName": NAME, "resources": {"requests": {"storage": "1Gi"}}}
    deployment = yaml.safe_load(EXAMPLE.read_text())
    deployment["metadata"]["name"] = NAME
    deployment["spec"]["model"]["dtype"] = "float32"
    deployment["spec"]["master"] = {"journal": {"claimName": NAME}}
    resources = [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": NAME}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": NAME}, "spec": claim},
        deployment,
    ]
    try:
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(resources))
        kubectl("wait", "--for=condition=Ready", f"orca/{NAME}", "--timeout=120s")
        address = kubectl("get", "service", NAME, "-o", "jsonpath={.spec.clusterIP}")
        yield f"http://{address}"
    finally:
        kubectl("delete", "orca", NAME, "--ignore-not-found")
        until(lambda: not pods(), 0.5)
        kubectl("delete", f"pvc/{NAME}", f"pv/{NAME}", "--ignore-not-found", "--wait=false")
        shutil.rmtree(folder)


@dataclass(slots=True)
class Measured:
    """All rounds of one victim: a pause and `resumed` per client, an `equal` per stream, a gap per round."""

    pauses: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    resumed: list[bool] = field(default_factory=list)
    equal: list[bool] = field(default_factory=list)

    def add(self, clients: list[Client], since: float, gap: float, expected: list[list[int]]) -> None:
        """Add a round whose victim ended after `since`; `expected` are the tokens of each client's stream."""
        self.pauses += [longest_gap(client.times, since) for client in clients]
        self.gaps.append(gap)
        self.resumed += [client.num_resumed > 0 for client in clients]
        self.equal += [tokens == expected[client.seed] for client in clients for tokens in client.streams]

    def cells(self) -> list[str]:
        """Return the cells of COLUMNS."""
        two = [f"{statistics.median(seconds):.1f}, {max(seconds):.1f} s" for seconds in (self.pauses, self.gaps)]
        shares = [f"{sum(found)} of {len(found)}" for found in (self.resumed, self.equal)]
        return [*two, *shares]


COLUMNS = (
    "longest pause of a client's streams: median, maximum",
    "longest time without an answer to a new request: median, maximum",
    "clients that resumed a stream by id",
    "streams with the tokens of the undisturbed run",
)


def main() -> None:
    """Print the circumstances and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=positive, default=8, help="clients that read streams (8)")
    parser.add_argument("--tokens", type=positive, default=600, help="tokens per stream (600)")
    parser.add_argument("--rounds", type=positive, default=3, help="ends of each victim (3)")
    parser.add_argument("--only", default="", metavar="TEXT", help="victims whose names contain TEXT (all)")
    parser.add_argument(
        "--folder", type=Path, default=Path("/var/tmp/orca-recovery"), help="new folder for the journal"
    )
    settings = parser.parse_args()
    server = json.loads(kubectl("get", "--raw", "/version"))["gitVersion"]
    print(f"{line(circumstances(None))}; Kubernetes {server}", flush=True)
    chosen = {name: victim for name, victim in victims().items() if settings.only in name}
    measured = {name: Measured() for name in chosen}
    with deployed(settings.folder) as url:
        undisturbed, _, _ = asyncio.run(play(url, settings, lambda: None))
        expected = [client.streams[0] for client in undisturbed]
        # A container is killed before its pod is deleted: its second end in one pod would meet the kubelet's back-off.
        for name in [name for _ in range(settings.rounds) for name in chosen]:
            time.sleep(SETTLE_SECONDS)
            try:
                played = asyncio.run(play(url, settings, functools.partial(end_and_wait, *chosen[name])))
            except* LostRequestError as lost:
                raise SystemExit(f"error: {name}: {lost.exceptions[0]}") from None
            clients, ended_at, gap = played
            measured[name].add(clients, ended_at, gap, expected)
            print(f"{name}: {', '.join(measured[name].cells())}", flush=True)
    rows = [("victim", *COLUMNS), ("---",) * (1 + len(COLUMNS)), *((name, *measured[name].cells()) for name in chosen)]
    print("", *(f"| {' | '.join(row)} |" for row in rows), sep="\n")


if __name__ == "__main__":
    main()
