"""The master's pod is deleted by force, deleted and evicted under streams through the Service.

Its journal is on a PersistentVolume: the clients continue by request id and Last-Event-ID, with the master of the new
pod. A master that gets a signal first finishes the requests that run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.edits import evict
from support.kubernetes import MASTER_IMAGE, Namespace, demo_spec, eventually

FOLDERS = Path("/var/tmp")
"""Folder of the node in which the volume's folder is created."""
POD_USER = 10001
FORCED = "deleted by force"
ENDS = (FORCED, FORCED, "deleted", "evicted")
RECOVERY_SECONDS = 150
"""From a deletion to the new master's continuation of the requests; the old master may hold the journal meanwhile."""
READY = {"type": "Ready", "status": "True"}
MOST_SECONDS = 560
"""Bound of the streams of a test, below that of the test."""
RESUMED = "requests of an earlier master are resumed"
STOP = "/tmp/stop"
RESUMER = """
import concurrent.futures, http.client, json, os, sys, time, urllib.error, urllib.request
SERVER, STOP = sys.argv[1:]
def request(body, name, last):
    if name:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last)}
        return urllib.request.Request(f"{SERVER}/v1/requests/{name}", headers=headers)
    headers = {"Content-Type": "application/json"}
    return urllib.request.Request(f"{SERVER}/v1/completions", json.dumps(body).encode(), headers)
def stream(body):
    text, tokens, reason, name, last, next_id, num_resumed = "", [], None, "", 0, 0, 0
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        num_resumed += bool(name)
        try:
            with urllib.request.urlopen(request(body, name, last), timeout=30) as answer:
                for line in answer:
                    if not line.endswith(b"\\n") or line.startswith(b'data: {"error"'):
                        break
                    if line.startswith(b"id: "):
                        next_id = int(line[4:])
                    elif line.startswith(b"data: "):
                        assert next_id == last + 1, (name, next_id, last)
                        last = next_id
                        if line.startswith(b"data: [DONE]"):
                            return [text, tokens, reason, num_resumed]
                        event = json.loads(line[6:])
                        name, (choice,) = event["id"], event["choices"]
                        text, reason = text + choice["text"], choice["finish_reason"]
                        tokens += choice.get("token_ids", [])
        except urllib.error.HTTPError as error:
            assert error.code == 503, (name, error.code, error.read())
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.2)
    raise AssertionError(f"{name} did not end: {last} events, resumed {num_resumed} times")
def streams(body):
    transcripts = [stream(body)]
    while not os.path.exists(STOP):
        transcripts.append(stream(body))
    return transcripts
bodies = json.load(sys.stdin)
with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
    print(json.dumps(list(pool.map(streams, bodies))))
"""
"""Program for a pod: streams each body again and again until a file exists, and prints the transcripts by body.

A stream continues after a lost connection, an error event (a master that ends) and a 503. An event with another number
than the next one ends the program, and so does an unknown request (404).
"""
BODIES = [
    {"prompt": [1 + seed, 2, 3], "max_tokens": 400 + 50 * seed, "temperature": 0.9 * (seed % 2), "seed": seed,
     "stream": True, "ignore_eos": True, "return_token_ids": True}
    for seed in range(6)
]  # fmt: skip
"""Greedy and seeded."""


@pytest.fixture
def journal(namespace: Namespace) -> Iterator[str]:
    """Yield the name of a claim for a folder of the node, which is deleted at the end.

    The kubelet does not change the owner of a hostPath (fsGroup), so a pod of root makes the folder for the pods' user.
    """
    folder = FOLDERS / namespace.name
    as_root(namespace, f"install -d -m 0770 -o {POD_USER} -g {POD_USER} {folder}")
    namespace.claim("journal", folder, "ReadWriteOnce")
    yield "journal"
    namespace.kubectl("delete", "orca", "--all", "--wait=false")
    assert eventually(lambda: not namespace.pods(), 120)
    as_root(namespace, f"rm -r {folder}")
    namespace.kubectl("delete", "pvc/journal", f"pv/{namespace.name}-journal", "--wait=false")


def as_root(namespace: Namespace, command: str) -> None:
    """Run a shell command in a pod that may write to the node's FOLDERS."""
    namespace.apply({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "root"},
        "spec": {
            "restartPolicy": "Never",
            "volumes": [{"name": "node", "hostPath": {"path": str(FOLDERS)}}],
            "containers": [{
                "name": "root", "image": MASTER_IMAGE, "command": ["sh", "-c", command],
                "securityContext": {"runAsUser": 0},
                "volumeMounts": [{"name": "node", "mountPath": str(FOLDERS)}],
            }],
        },
    })  # fmt: skip

    def phase() -> str:
        return str(namespace.get("pod", "root")["status"]["phase"])

    assert eventually(lambda: phase() in ("Succeeded", "Failed"), 60)
    assert phase() == "Succeeded", namespace.kubectl("logs", "root")
    namespace.kubectl("delete", "pod", "root")


def test_streams_survive_the_end_of_the_master(namespace: Namespace, journal: str):
    """Every request of which a client has the id is resumed, and the workers' containers are the same."""
    settings = demo_spec()["master"] | {"journal": {"claimName": journal}}
    model = {"uri": "file:///models/demo", "dtype": "float32"}
    namespace.deploy(demo_spec(model=model, parallelism={"pipelineParallelSize": 2}, master=settings))
    namespace.wait_ready()
    namespace.ask("demo", [{"prompt": [1], "max_tokens": 1}])  # the client is there
    inside = ("exec", "client", "--")
    namespace.kubectl(*inside, "touch", STOP)
    undisturbed = [transcript for (transcript,) in run_streams(namespace)]
    assert [len(tokens) for _, tokens, _, _ in undisturbed] == [body["max_tokens"] for body in BODIES]
    namespace.kubectl(*inside, "rm", STOP)
    before, logs = containers(namespace), []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_streams, namespace)
        try:
            for end in ENDS:
                assert eventually(lambda: namespace.unfinished("demo") == len(BODIES), 60, interval=0.1)
                logs.append(end_master(namespace, end))
        finally:
            namespace.kubectl(*inside, "touch", STOP)
        transcripts = running.result(250)
    for expected, repeated in zip(undisturbed, transcripts, strict=True):
        assert [transcript[:3] for transcript in repeated if transcript[:3] != expected[:3]] == []
    resumed = [sum(bool(transcript[3]) for transcript in repeated) for repeated in transcripts]
    assert min(resumed) >= 1, "each client was in the middle of a stream"
    assert containers(namespace) == before
    assert namespace.condition("JournalReady")["reason"] == "Recording"
    lines = [line for log in logs for line in log.splitlines() if "--journal" in line]
    print(f"resumed streams by client: {resumed} of {[len(repeated) for repeated in transcripts]}", *lines, sep="\n")


def run_streams(namespace: Namespace) -> list[list[Any]]:
    """Run RESUMER in the client's pod; return [text, token ids, finish reason, resumptions] of each stream, by body."""
    program = ("python3", "-c", RESUMER, "http://demo", STOP)
    printed = namespace.kubectl("exec", "-i", "client", "--", *program, stdin=json.dumps(BODIES), seconds=MOST_SECONDS)
    transcripts: list[list[Any]] = json.loads(printed)
    return transcripts


def end_master(namespace: Namespace, end: str) -> str:
    """End the master's pod, wait until the master of another pod has taken over; return its log."""
    old = namespace.master()
    match end:
        case "evicted":
            evict(namespace, old)
        case "deleted":
            namespace.kubectl("delete", "pod", old, "--wait=false")
        case _:
            namespace.kubectl("delete", "pod", old, "--force", "--grace-period=0")

    def log() -> str:
        new = namespace.master()
        return "" if new in ("", old) else namespace.kubectl("logs", new, check=False)

    def took_over() -> bool:
        if end == FORCED:
            return RESUMED in log()
        conditions = {
            pod["metadata"]["name"]: pod["status"].get("conditions", [])
            for pod in namespace.pods()
            if "-master-" in pod["metadata"]["name"]
        }
        ready = [name for name, entries in conditions.items() for entry in entries if READY.items() <= entry.items()]
        return old not in conditions and ready == list(conditions) != []

    assert eventually(took_over, RECOVERY_SECONDS), namespace.kubectl("get", "pods", "-o", "wide")
    return log()


def containers(namespace: Namespace) -> dict[str, tuple[str, int]]:
    """Return uid and container restarts of the worker pods by name."""
    pods = {pod["metadata"]["name"]: pod for pod in namespace.pods()}
    return {
        name: (
            pods[name]["metadata"]["uid"],
            sum(status["restartCount"] for status in pods[name]["status"]["containerStatuses"]),
        )
        for name in namespace.workers()
    }
