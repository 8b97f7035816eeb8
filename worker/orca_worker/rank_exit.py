"""`RankExit`: why a rank process has ended, from its exit code, its last lines and the container's memory."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from orca_protos.exit_code import describe_exit, is_sent

from orca_worker.cgroup import memory_limit, oom_kills


@dataclass(frozen=True, slots=True)
class RankExit:
    """`message`: what to report; `outside`: the cause is a signal of another process, but not a lack of memory."""

    message: str
    out_of_memory: bool = False
    outside: bool = False


def explain_exit(code: int, oom_kills_before: int, last_lines: Iterable[str]) -> RankExit:
    """Explain an exit code, as `subprocess` gives it.

    `oom_kills_before`: cgroup.oom_kills() when the rank's present work began. `last_lines` of standard error.
    """
    died = describe_exit(code)
    out_of_memory = code == -signal.SIGKILL and oom_kills() > oom_kills_before
    if out_of_memory:
        died = f"out of memory: the container's limit is {(memory_limit() or 0) >> 20} MiB"
    return RankExit("; ".join((f"ended: {died}", *last_lines)), out_of_memory, is_sent(code) and not out_of_memory)
