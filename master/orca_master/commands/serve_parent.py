"""The parent process of `orca serve`: it restarts the workers and passes signals on to the master, its child process.

The parent has one thread and waits with sigwaitinfo(2), so that no signal is lost between a check and a wait. A timer
limits the wait: Python's sigtimedwait returns an undefined signal if the process was stopped beyond the timeout.
"""

from __future__ import annotations

import os
import signal

from orca_master.commands.heartbeat import CHECK_SECONDS
from orca_master.commands.local_workers import LocalWorkers
from orca_master.commands.ports import SIGNALS


def run_beside(master: int, workers: LocalWorkers) -> int:
    """Keep the workers running until the child process `master` ends; return its exit code as `subprocess` would.

    SIGNALS and SIGCHLD must be blocked. Uses SIGALRM.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGALRM,))
    while True:
        ended, status = os.waitpid(master, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        workers.end_silent()
        seconds = workers.restart_ended()
        wait = CHECK_SECONDS if seconds is None else min(seconds, CHECK_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, max(wait, 0.001))  # 0 would mean no timer
        number = signal.sigwaitinfo((*SIGNALS, signal.SIGCHLD, signal.SIGALRM)).si_signo
        if number in SIGNALS:
            os.kill(master, number)
