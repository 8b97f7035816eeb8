"""`describe_free`: which masters a master waits for, until when, and that nothing else waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from orca_master.engine import earlier_master
from orca_master.engine.config import GRACE_SECONDS, EngineConfig
from orca_master.engine.earlier_master import describe_free
from orca_master.engine.faults import WorkerLostError
from orca_protos import engine_pb2 as pb

CONFIG = EngineConfig(master_id="me", drain_timeout=20.0)


class Worker:
    """Says in turn that it serves these masters, and the last one from then on; "lost": it is lost."""

    def __init__(self, address: str, masters: Sequence[str]) -> None:
        self.address = address
        self._masters = list(masters)
        self.num_calls = 0

    async def describe(self, timeout: float) -> pb.Description:
        assert timeout == CONFIG.connect_timeout
        self.num_calls += 1
        master = self._masters[0] if len(self._masters) == 1 else self._masters.pop(0)
        if master == "lost":
            raise WorkerLostError("lost")
        return pb.Description(serving_master=master, version=self.address)


def describe(config: EngineConfig, *masters: Sequence[str]) -> tuple[list[Worker], list[pb.Description]]:
    workers: list[Any] = [Worker(f"{index}:1", turns) for index, turns in enumerate(masters)]
    described = asyncio.run(asyncio.wait_for(describe_free(workers, config), 60))
    assert [description.version for description in described] == [worker.address for worker in workers]
    return workers, described


@pytest.fixture(autouse=True)
def _polls_often(monkeypatch):
    monkeypatch.setattr(earlier_master, "POLL_SECONDS", 0.001)


@pytest.mark.parametrize("master", ["", "me"])
def test_nothing_waits_without_another_master(master, caplog):
    """No stream is open (also of older workers, which do not say it), or that of this master, which forms anew."""
    workers, _ = describe(CONFIG, [master], [""])
    assert [worker.num_calls for worker in workers] == [1, 1]
    assert not caplog.records


def test_the_workers_are_left_to_another_master_until_its_streams_end(caplog):
    caplog.set_level("INFO")
    workers, described = describe(CONFIG, ["other"] * 4 + [""], [""])
    assert [worker.num_calls for worker in workers] == [5, 5]
    assert described[0].serving_master == ""
    assert [record.getMessage() for record in caplog.records] == [
        "worker 0:1 serves another master, which may be draining: waiting for its end, at most 30 s"
    ]


def test_the_wait_is_bounded_by_the_drain_and_the_grace_after_it(monkeypatch, caplog):
    assert CONFIG.handover_timeout == 20.0 + GRACE_SECONDS
    monkeypatch.setattr("orca_master.engine.config.GRACE_SECONDS", 0.05)
    config = EngineConfig(master_id="me", drain_timeout=0.0)
    workers, described = describe(config, [""], ["other"])
    assert described[1].serving_master == "other"
    assert workers[1].num_calls > 1
    assert "worker 1:1 still serves another master after 0 s and is taken from it" in caplog.text


def test_a_worker_that_is_lost_ends_the_wait():
    with pytest.raises(WorkerLostError):
        describe(CONFIG, ["other", "other", "lost"])


def test_every_master_has_its_own_identity():
    assert EngineConfig().master_id != EngineConfig().master_id
    assert EngineConfig() == EngineConfig()
