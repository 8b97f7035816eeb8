"""Measures on a cluster how long the streams of an OrcaDeployment pause when a container, a pod or all pods end.

    python benchmarks/cluster_recovery.py [--streams 8] [--tokens 600] [--rounds 3] [--only NAME] [--folder DIR]

Run it as root on the node of a cluster with one node, the operator and the images. It deploys the demo model on two
partitions in float32, with the journal on a PersistentVolume in DIR. In each round it kills the container of each
worker and of the master, deletes each pod with its grace period and by force, and deletes all pods by force (a whole
restart). Meanwhile every client reads one seeded stream after the other through the Service, and continues a lost one
by request id and Last-Event-ID; one more client sends requests of one token, one after the other. The result is a
table: the longest pause between two events of each client, the longest time between two answers to requests of one
token, how many of these requests failed (status other than 200, or no connection), and how many streams had the tokens
of the undisturbed run. The clients share the machine with the cluster.
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
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml
from cluster_victims import NAME, end_and_wait, pods, victims
from operator_cost import EXAMPLE, kubectl, until
from orca_bench.circumstances import circumstances, line
from orca_bench.options import positive
from recovery import TOKENS_BEFORE, Transcript

POD_USER = 10001
RETRY_SECONDS = 0.05
ROUND_SECONDS = 300.0
SETTLE_SECONDS = 10.0
"""From the recovery to the next victim: the workers start their spare ranks meanwhile."""
TIMEOUT = httpx.Timeout(60.0, connect=1.0)


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


@dataclass(slots=True)
class Prober:
    """Sends requests of one token, one after the other. `times`: of the answers, `failures`: one reason each."""

    http: httpx.AsyncClient
    times: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Send requests until cancelled."""
        while True:
            try:
                answer = await self.http.post("/v1/completions", json={"prompt": [1], "max_tokens": 1})
                if answer.status_code == 200:
                    self.times.append(time.monotonic())
                else:
                    self.failures.append(f"HTTP {answer.status_code}")
            except httpx.TransportError as error:
                self.failures.append(type(error).__name__)
            await asyncio.sleep(RETRY_SECONDS)


def longest_gap(times: list[float], since: float) -> float:
    """Return the longest time between two neighbours of which the later is after `since`, in seconds."""
    pairs = itertools.pairwise(times)
    return max((later - earlier for earlier, later in pairs if later > since), default=float("nan"))


async def play(
    url: str, settings: argparse.Namespace, victim: Callable[[], None]
) -> tuple[list[Client], float, Prober]:
    """Run the clients, call `victim` in another thread, and end the clients when all of them have had events after it.

    Returns the clients, the time at which `victim` was called, and the prober. `victim` returns when all pods are ready
    again.
    """
    stop = asyncio.Event()
    async with (
        asyncio.timeout(ROUND_SECONDS),
        httpx.AsyncClient(base_url=url, timeout=TIMEOUT, trust_env=False) as http,
        asyncio.TaskGroup() as tasks,
    ):
        clients = [Client(http, seed, settings.tokens) for seed in range(settings.streams)]
        prober = Prober(http)
        probing = tasks.create_task(prober.run())
        reading = [tasks.create_task(client.run(stop)) for client in clients]
        while any(len(client.times) < TOKENS_BEFORE for client in clients) or not prober.times:
            await asyncio.sleep(0.01)
        ended_at = time.monotonic()
        await asyncio.to_thread(victim)
        recovered_at = time.monotonic()
        while any(client.times[-1] < recovered_at for client in clients) or prober.times[-1] < recovered_at:
            await asyncio.sleep(0.01)
        stop.set()
        await asyncio.gather(*reading)
        probing.cancel()
    return clients, ended_at, prober


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
    """All rounds of one victim: a pause and `resumed` per client, an `equal` per stream, a gap per round.

    `answered`: number of requests of one token with an answer, `failures`: reasons of the others.
    """

    pauses: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    resumed: list[bool] = field(default_factory=list)
    equal: list[bool] = field(default_factory=list)
    answered: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def add(self, clients: list[Client], since: float, prober: Prober, expected: list[list[int]]) -> None:
        """Add a round whose victim ended after `since`; `expected` are the tokens of each client's stream."""
        self.pauses += [longest_gap(client.times, since) for client in clients]
        self.gaps.append(longest_gap(prober.times, since))
        self.answered += len(prober.times)
        self.failures.update(prober.failures)
        self.resumed += [client.num_resumed > 0 for client in clients]
        self.equal += [tokens == expected[client.seed] for client in clients for tokens in client.streams]

    def cells(self) -> list[str]:
        """Return the cells of COLUMNS."""
        two = [f"{statistics.median(seconds):.1f}, {max(seconds):.1f} s" for seconds in (self.pauses, self.gaps)]
        shares = [f"{sum(found)} of {len(found)}" for found in (self.resumed, self.equal)]
        reasons = "".join(f", {number} {reason}" for reason, number in self.failures.items())
        return [*two, f"{self.failures.total()} of {self.answered + self.failures.total()}{reasons}", *shares]


COLUMNS = (
    "longest pause of a client's streams: median, maximum",
    "longest time without an answer to a new request: median, maximum",
    "new requests that failed",
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
            clients, ended_at, prober = played
            measured[name].add(clients, ended_at, prober, expected)
            print(f"{name}: {', '.join(measured[name].cells())}", flush=True)
    rows = [("victim", *COLUMNS), ("---",) * (1 + len(COLUMNS)), *((name, *measured[name].cells()) for name in chosen)]
    print("", *(f"| {' | '.join(row)} |" for row in rows), sep="\n")


if __name__ == "__main__":
    main()
