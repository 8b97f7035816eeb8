"""A master's pod is deleted: its successor starts while it drains, and takes the same workers after it."""

from __future__ import annotations

import copy
import json

import httpx
import pytest
from support.cluster import BODY, NAME, Cluster, free_ports
from support.served import eventually

PATIENT = ["--drain-timeout", "300"]


@pytest.fixture
def cluster(checkpoint, tmp_path):
    made = Cluster(checkpoint(NAME), tmp_path)
    made.start_worker(0)
    made.start_worker(1)
    yield made
    made.stop()


def test_a_successor_leaves_the_workers_to_a_master_that_drains(cluster):
    """It starts before the signal here, so that the test does not depend on the speed of its start."""
    cluster.start_master(*PATIENT)
    assert eventually(lambda: cluster.probe(cluster.master_probe, "/readyz") == 200), cluster.log
    successor = copy.copy(cluster)
    successor.log = []
    successor.api, successor.master_probe, successor.admin = free_ports(3)
    successor.start_master(*PATIENT)
    try:
        assert eventually(lambda: any("serves another master" in line for line in successor.log)), successor.log
        assert successor.probe(successor.master_probe, "/livez") == 200
        assert successor.probe(successor.master_probe, "/readyz") == 503
        events = []
        url = f"http://127.0.0.1:{cluster.api}/v1/completions"
        with httpx.stream("POST", url, json={**BODY, "stream": True}, timeout=300) as answer:
            for line in answer.iter_lines():
                if line:
                    events.append(line.removeprefix("data: "))
                    if len(events) == 20:
                        cluster.master.terminate()
        assert events.pop() == "[DONE]"
        assert not [event for event in events if "error" in json.loads(event)]
        assert cluster.master.wait(120) == 0
        assert not [line for line in cluster.log if "is lost" in line]
        assert eventually(lambda: successor.probe(successor.master_probe, "/readyz") == 200), successor.log
        assert len(successor.ask()) == BODY["max_tokens"]
        assert not [line for line in successor.log if "is lost" in line or "not formed" in line]
    finally:
        successor.master.kill()
        successor.master.wait()
