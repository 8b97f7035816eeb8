"""A master's pod is deleted: its successor starts while it drains, and takes the same workers after it."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator

import httpx
import pytest
from support.cluster import BODY, NAME, Cluster, free_ports
from support.served import eventually

pytestmark = pytest.mark.long

PATIENT = ["--drain-timeout", "300"]


@pytest.fixture
def cluster(checkpoint, tmp_path):
    made = Cluster(checkpoint(NAME), tmp_path)
    made.start_worker(0)
    made.start_worker(1)
    yield made
    made.stop()


@contextlib.contextmanager
def successor_of(cluster: Cluster, *options: str) -> Iterator[Cluster]:
    """Start a master with ports of its own over the same workers."""
    successor = copy.copy(cluster)
    successor.log = []
    successor.api, successor.master_probe, successor.admin = free_ports(3)
    successor.start_master(*options)
    try:
        yield successor
    finally:
        successor.master.kill()
        successor.master.wait()


@pytest.mark.parametrize("journalled", [False, True])
def test_a_successor_leaves_the_workers_to_a_master_that_drains(cluster, tmp_path, journalled):
    """It starts before the signal here, so that the test does not depend on the speed of its start.

    With a journal on a shared volume, it waits for the folder before it asks the workers.
    """
    options = [*PATIENT, "--journal", str(tmp_path / "journal")] if journalled else PATIENT
    awaited = "another master uses this folder, which may be draining" if journalled else "serves another master"
    cluster.start_master(*options)
    assert eventually(lambda: cluster.probe(cluster.master_probe, "/readyz") == 200, 300), cluster.log
    with successor_of(cluster, *options) as deleted:
        assert eventually(lambda: any(awaited in line for line in deleted.log), 300), deleted.log
        deleted.master.terminate()
        assert deleted.master.wait(120) == 0, "a signal ends the wait"
    with successor_of(cluster, *options) as successor:
        assert eventually(lambda: any(awaited in line for line in successor.log), 300), successor.log
        paths = ["/startupz", "/livez", "/readyz"]
        assert [successor.probe(successor.master_probe, path) for path in paths] == [200, 200, 503]
        events = []
        url = f"http://127.0.0.1:{cluster.api}/v1/completions"
        with httpx.stream("POST", url, json={**BODY, "stream": True}, timeout=300) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    events.append(line.removeprefix("data: "))
                    if len(events) == 20:
                        cluster.master.terminate()
        assert events.pop() == "[DONE]"
        assert not [event for event in events if "error" in json.loads(event)]
        assert cluster.master.wait(120) == 0
        assert not [line for line in cluster.log if "is lost" in line]
        assert eventually(lambda: successor.probe(successor.master_probe, "/readyz") == 200, 300), successor.log
        assert len(successor.ask()) == BODY["max_tokens"]
        assert not [line for line in successor.log if "is lost" in line or "not formed" in line]
