"""Child processes of a process with one thread, killed by the kernel when that process ends (Linux)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable

from orca_protos.parent_death import die_with_parent


def fork(run: Callable[[], int]) -> int:
    """Run `run` in a child process, in a session of its own; return the process id.

    The child inherits the blocked signals, except SIGCHLD. It ends with the exit code that `run` returns, or with 1 and
    a traceback if `run` raises. Raises OSError if the system cannot fork.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()  # Ctrl-C reaches only the parent process, which passes it on
        die_with_parent()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
        if os.getppid() == parent:  # else the parent had ended before prctl
            code = run()
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:  # closed by the caller
                    stream.flush()
        finally:
            os._exit(code)


class Fork:
    """A child process that runs `run`, with its standard error in a pipe. Call `close` in any case."""

    def __init__(self, run: Callable[[], int]) -> None:
        reader, writer = os.pipe()
        try:
            self._pid = fork(lambda: _with_errors_to(writer, run))
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self._reader = reader
        self._ended = False

    def output(self, deadline: float) -> str:
        """Return what the process writes until it ends; raise TimeoutError. `deadline`: of the monotonic clock."""
        output = b""
        while select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = os.read(self._reader, 1 << 16)
            if not part:
                return output.decode(errors="replace")
            output += part
        raise TimeoutError

    def wait(self) -> int:
        """Wait for the process to end; return its exit code as `subprocess` would."""
        _, status = os.waitpid(self._pid, 0)
        self._ended = True
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Kill the process if it runs."""
        os.close(self._reader)
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self.wait()


def _with_errors_to(writer: int, run: Callable[[], int]) -> int:
    """Run `run` with an empty standard input and without a standard output; return its exit code."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, descriptor in enumerate((nothing, nothing, writer)):
        os.dup2(descriptor, number)
    sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    return run()
