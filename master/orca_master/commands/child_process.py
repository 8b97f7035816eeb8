"""Child processes of a process with one thread, killed by the kernel when that process ends (Linux)."""

from __future__ import annotations

import os
import signal
import sys
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
