"""`LocalWorkers`: the worker processes of `orca serve`, on Unix sockets, restarted like the containers of a pod.

A worker that gives no sign of life (heartbeat.py) is killed and restarted, as by a liveness probe.

No worker outlives the thread that starts it: workers get SIGTERM, then SIGKILL, and the kernel kills them if that
thread ends (parent_death.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from orca_protos.exit_code import describe_exit
from orca_protos.parent_death import bound_command

from orca_master.errors import ConfigurationError
from orca_master.heartbeat import Heartbeat

logger = logging.getLogger(__name__)

EXIT_SECONDS = 5.0
BACK_OFF_SECONDS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Wait before the restarts of a worker that ends again and again; the last one repeats."""
WITHOUT_RECOVERY = ("--log-level", "warning", "--no-spare-rank")
"""Options of workers that are not used any more after a failure."""
PATH_BYTES = 107
"""Maximum length of the path of a Unix socket on Linux (unix(7): `sun_path` without the final zero)."""
STABLE_SECONDS = 60.0
"""A worker that ran for so long is restarted without a wait."""


@dataclass(slots=True)
class _Worker:
    """One worker. Times in seconds of the monotonic clock."""

    process: subprocess.Popen[bytes]
    heartbeat: Heartbeat
    started_at: float
    num_restarts: int = 0
    """Number of restarts in a row, each before STABLE_SECONDS."""
    restart_at: float | None = None
    """When the ended process is replaced; None while the process runs."""


class LocalWorkers:
    """`count` workers at `addresses`. A context manager, to be entered on a thread that outlives the workers.

    Raises ConfigurationError if the folder for temporary files cannot have the sockets, OSError on entry. `options`:
    more options of `orca worker`; `own_options`: those of each worker. `folder` is temporary and has the sockets.
    """

    def __init__(
        self,
        count: int,
        options: Sequence[str] = WITHOUT_RECOVERY,
        own_options: Callable[[int], Sequence[str]] = lambda _: (),
    ) -> None:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="orca-")
        except OSError as error:
            raise ConfigurationError(f"TMPDIR: no folder for the workers' sockets can be created: {error}") from error
        self.folder = self._folder.name
        paths = [f"{self.folder}/worker-{index}.sock" for index in range(count)]
        if any(len(os.fsencode(path)) > PATH_BYTES for path in paths):
            self._folder.cleanup()
            raise ConfigurationError(
                f"TMPDIR: {tempfile.gettempdir()} is too long: the path of a Unix socket has at most {PATH_BYTES} bytes"
            )
        self.addresses = [f"unix:{path}" for path in paths]
        self._options = options
        self._own_options = own_options
        self._workers: list[_Worker] = []

    def __enter__(self) -> LocalWorkers:
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            for address in self.addresses:
                self._workers.append(self._start_worker(address))
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers and remove their sockets."""
        self._end()

    def _end(self) -> None:
        """Send SIGTERM to the workers, and SIGKILL to those that still run after EXIT_SECONDS; remove the sockets."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for worker in self._workers:
                if worker.process.poll() is None:
                    worker.process.send_signal(number)
            deadline = time.monotonic() + EXIT_SECONDS
            for worker in self._workers:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, deadline - time.monotonic()))
        for worker in self._workers:
            worker.heartbeat.close()
        self._folder.cleanup()

    def kill(self) -> None:
        """Kill the workers and thereby their ranks (parent_death.py): they have done nothing yet."""
        for worker in self._workers:
            worker.process.kill()

    def end_silent(self) -> None:
        """Kill the workers that give no sign of life; `restart_ended` restarts them. Call every CHECK_SECONDS."""
        for index, worker in enumerate(self._workers):
            if worker.restart_at is None and worker.heartbeat.is_silent(time.monotonic(), worker.process.pid):
                logger.warning("worker %d gives no sign of life and is killed", index)
                worker.process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(EXIT_SECONDS)

    def restart_ended(self) -> float | None:
        """Restart the ended workers whose wait is over; return the seconds until the next restart, None without one."""
        now = time.monotonic()
        for index, worker in enumerate(self._workers):
            if worker.restart_at is None and (code := worker.process.poll()) is not None:
                stable = now - worker.started_at >= STABLE_SECONDS
                worker.num_restarts = 0 if stable else worker.num_restarts
                seconds = BACK_OFF_SECONDS[min(worker.num_restarts, len(BACK_OFF_SECONDS) - 1)]
                worker.restart_at = now + seconds
                when = f"in {seconds:.0f} s" if seconds else "now"
                logger.warning("worker %d ended (%s) and is restarted %s", index, describe_exit(code), when)
            if worker.restart_at is not None and worker.restart_at <= now:
                try:
                    restarted = self._start_worker(self.addresses[index], worker.num_restarts + 1)
                except OSError as error:  # no memory or no process left
                    worker.restart_at = now + BACK_OFF_SECONDS[-1]
                    logger.warning("worker %d was not started: %s", index, error.strerror)
                else:
                    worker.heartbeat.close()
                    self._workers[index] = restarted
        waits = [worker.restart_at - now for worker in self._workers if worker.restart_at is not None]
        return min(waits, default=None)

    def _start_worker(self, address: str, num_restarts: int = 0) -> _Worker:
        heartbeat = Heartbeat(time.monotonic())
        try:
            process = self._start(address, heartbeat.writer)
        except BaseException:
            heartbeat.close()
            raise
        finally:
            heartbeat.close_writer()
        return _Worker(process, heartbeat, time.monotonic(), num_restarts)

    def _start(self, address: str, heartbeat: int) -> subprocess.Popen[bytes]:
        options = (*self._options, *self._own_options(self.addresses.index(address)))
        return subprocess.Popen(
            [*bound_command("orca_worker"), "--listen", address, "--heartbeat", str(heartbeat), *options],
            pass_fds=(heartbeat,),
            start_new_session=True,  # Ctrl-C reaches only the parent process, which then ends the workers in order
        )
