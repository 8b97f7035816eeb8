"""The parent process of `orca serve`: it restarts the workers and the master, and passes signals on to the master.

A master that gives no sign of life (heartbeat.py) is killed and restarted, as by a liveness probe.

The parent has one thread and waits with sigwaitinfo(2), so that no signal is lost between a check and a wait. A timer
limits the wait: Python's sigtimedwait returns an undefined signal if the process was stopped beyond the timeout.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable

from orca_protos.exit_code import describe_exit

from orca_master.commands.local_workers import BACK_OFF_SECONDS, LocalWorkers
from orca_master.commands.ports import SIGNALS, Parent
from orca_master.heartbeat import CHECK_SECONDS, Heartbeat

logger = logging.getLogger(__name__)

MAX_RESTARTS = 5
"""Maximum restarts of the master in a row, each of which served for less than STABLE_SECONDS."""
STABLE_SECONDS = 2.0
"""Seconds of serving after which a master is restarted without a wait."""

Start = Callable[[bool, Parent], int]
"""Forks a master and returns its process id. Arguments: True for a restart, and what the master writes to."""


class MasterProcess:
    """The master, a child process that `start` forks."""

    def __init__(self, start: Start) -> None:
        self._start_process = start
        self._reader = -1
        """Pipe in which the master writes when it has begun to serve."""
        self._heartbeat: Heartbeat
        self._pid: int | None = self._start(restarted=False)
        self._num_restarts = 0
        self._restart_at = 0.0
        self.stopping = False
        """True after a signal to end."""

    def exit_code(self) -> int | None:
        """Return the exit code, as `subprocess` would, of a master that has ended and is not restarted."""
        if self._pid is None:
            return None
        ended, status = os.waitpid(self._pid, os.WNOHANG)
        if not ended:
            return None
        code, now = os.waitstatus_to_exitcode(status), time.monotonic()
        stable = self._has_served(now)
        self._num_restarts = 0 if stable else self._num_restarts
        # A master that ends by itself has tried again to form its pipelines (attempts.py).
        if self.stopping or code >= 0 or self._num_restarts == MAX_RESTARTS:
            return code
        seconds = BACK_OFF_SECONDS[self._num_restarts]
        self._pid, self._restart_at = None, now + seconds
        self._num_restarts += 1
        when = f"in {seconds:.0f} s" if seconds else "now"
        logger.error("the master ended (%s) and is restarted %s", describe_exit(code), when)
        return None

    def end_silent(self) -> None:
        """Kill a master that gives no sign of life; `exit_code` notes its end. Call every CHECK_SECONDS."""
        if self._pid is not None and self._heartbeat.is_silent(time.monotonic(), self._pid):
            logger.error("the master gives no sign of life and is killed")
            os.kill(self._pid, signal.SIGKILL)

    def restart(self) -> float | None:
        """Restart the ended master if its wait is over; return the seconds until the restart, None without one."""
        if self._pid is not None:
            return None
        now = time.monotonic()
        if self._restart_at <= now:
            try:
                self._pid = self._start(restarted=True)
            except OSError as error:  # no memory or no process left
                self._restart_at = now + BACK_OFF_SECONDS[-1]
                logger.error("the master was not started: %s", error.strerror)
            else:
                return None
        return self._restart_at - now

    def _start(self, restarted: bool) -> int:
        reader, writer = os.pipe()
        heartbeat = Heartbeat(time.monotonic())
        try:
            pid = self._start_process(restarted, Parent(heartbeat.writer, writer))
        except OSError:
            os.close(reader)
            heartbeat.close()
            raise
        else:
            self._reader, self._heartbeat = reader, heartbeat
            return pid
        finally:
            os.close(writer)
            heartbeat.close_writer()

    def _has_served(self, now: float) -> bool:
        """Return True if the master that has ended served for STABLE_SECONDS; close its pipes."""
        self._heartbeat.close()
        with open(self._reader, "rb") as pipe:
            text = pipe.read()
        return bool(text) and now - float(text) >= STABLE_SECONDS

    def send(self, number: int) -> bool:
        """Pass a signal to end on; return False if no master runs."""
        self.stopping = True
        if self._pid is not None:
            os.kill(self._pid, number)
        return self._pid is not None


def run_beside(master: MasterProcess, workers: LocalWorkers, close_port: Callable[[], None]) -> int:
    """Keep master and workers running until the master ends for good; return its exit code as `subprocess` would.

    `close_port` is called at a signal to end. SIGNALS and SIGCHLD must be blocked. Uses SIGALRM.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGALRM,))
    while (code := master.exit_code()) is None:
        workers.end_silent()
        master.end_silent()
        waits = [wait for wait in (workers.restart_ended(), master.restart()) if wait is not None]
        wait = min([CHECK_SECONDS, *waits])
        signal.setitimer(signal.ITIMER_REAL, max(wait, 0.001))  # 0 would mean no timer
        number = signal.sigwaitinfo((*SIGNALS, signal.SIGCHLD, signal.SIGALRM)).si_signo
        if number in SIGNALS:
            close_port()
            if not master.send(number):
                return 0
    return code
