"""Why a rank ended: exit codes, signals of other processes, and the kills of the container's memory limit."""

from __future__ import annotations

import signal

import pytest
from orca_worker import rank_exit
from orca_worker.rank_exit import RankExit, explain_exit


@pytest.mark.parametrize(
    ("code", "oom_kills", "expected"),
    [
        (1, 2, RankExit("ended: exit code 1; last")),
        (-signal.SIGSEGV, 2, RankExit("ended: killed by SIGSEGV; last")),
        (-signal.SIGKILL, 2, RankExit("ended: killed by SIGKILL; last", outside=True)),
        (
            -signal.SIGKILL,
            3,
            RankExit("ended: out of memory: the container's limit is 64 MiB; last", out_of_memory=True),
        ),
        (-signal.SIGTERM, 3, RankExit("ended: killed by SIGTERM; last", outside=True)),
    ],
)
def test_explanations(monkeypatch, code, oom_kills, expected):
    monkeypatch.setattr(rank_exit, "oom_kills", lambda: oom_kills)
    monkeypatch.setattr(rank_exit, "memory_limit", lambda: 64 << 20)
    assert explain_exit(code, 2, ["last"]) == expected
