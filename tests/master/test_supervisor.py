"""The table in supervisor.py's docstring is the table in its code; the epochs of a pipeline's formations."""

from __future__ import annotations

import re

import pytest
from orca_contract.state import PipelinePhase
from orca_master.engine import supervisor
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.faults import WorkerLostError
from orca_protos.wire import HIGHEST_EPOCH
from support.fake_engine import Engine, play, topology


def test_the_documented_transitions_are_those_of_the_code():
    rows = re.findall(r"^\| ([A-Z]\w+) \| [^|]+ \| ([\w, ]+) \|$", supervisor.__doc__ or "", re.MULTILINE)
    documented = {
        PipelinePhase(state): {PipelinePhase(after) for after in following.split(", ")} for state, following in rows
    }
    assert documented == supervisor.TRANSITIONS
    assert set(documented) == set(PipelinePhase) - {PipelinePhase.PENDING}


@pytest.mark.parametrize(("last", "following"), [(7, 8), (HIGHEST_EPOCH - 1, HIGHEST_EPOCH), (HIGHEST_EPOCH, 1)])
def test_a_formation_has_a_higher_epoch_than_the_last_one_although_all_workers_are_new(last, following, monkeypatch):
    """The fake workers remember no epoch, as after their restart. A worker refuses an epoch above the highest."""
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", 0.001)

    async def scene(made: Engine) -> None:
        await made.engine.start()
        assert made.cluster.newest("a").epoch == 1
        made.cluster.newest("a").epoch = last
        made.cluster.newest("a").lose(WorkerLostError("worker a:0: killed"))
        await made.until(lambda: len(made.cluster.formed["a"]) == 2 and made.phase("a") is PipelinePhase.SERVING)
        assert made.cluster.newest("a").epoch == following

    config = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=60.0)
    play(lambda: Engine(topology("a"), config), scene)
