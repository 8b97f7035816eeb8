"""`RankExit`: why a rank process has ended, from its exit code, its last lines and the container's memory.

`exit_code` waits for the end.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from orca_protos.exit_code import describe_exit, is_sent

from orca_worker.cgroup import memory_limit, oom_kills

POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class RankExit:
    """`message`: what to report; `outside`: the cause is a signal of another process, but not a lack of memory."""

    message: str
    out_of_memory: bool = False
    outside: bool = False


async def exit_code(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait for the exit of a process, and return its exit code; None if it runs on for `seconds`."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while (code := process.poll()) is None and clock() < deadline:
        await asyncio.sleep(POLL_SECONDS)
    return code


def explain_exit(code: int, oom_kills_before: int, last_lines: Iterable[str]) -> RankExit:
    """Explain an exit code, as `subprocess` gives it.

    `oom_kills_before`: cgroup.oom_kills() when the rank's present work began. `last_lines` of standard error.
    """
    died = describe_exit(code)
    out_of_memory = code == -signal.SIGKILL and oom_kills() > oom_kills_before
    if out_of_memory:
        died = f"out of memory: the container's limit is {(memory_limit() or 0) >> 20} MiB"
    return RankExit("; ".join((f"ended: {died}", *last_lines)), out_of_memory, is_sent(code) and not out_of_memory)
