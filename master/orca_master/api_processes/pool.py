"""`ApiProcesses`: starts and restarts the API processes, which run the endpoint (`--api-processes`).

Each process has its own listening socket on the same port; the kernel distributes connections (SO_REUSEPORT). The
master keeps the sockets open, so that no connection is refused while a crashed process is replaced; it closes the
socket of a process that has ended in a drain. A process that violates the protocol of its link (link_server.py), or
that gives no sign of life (heartbeat.py), is killed and replaced: the kernel gives it connections as long as it lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from orca_protos.exit_code import describe_exit

from orca_master.api_processes.link_server import EngineServer
from orca_master.engine.engine_thread import EngineThread
from orca_master.errors import EngineUnavailableError
from orca_master.heartbeat import CHECK_SECONDS, Heartbeat
from orca_master.threads import start_process

logger = logging.getLogger(__name__)

JOIN_SECONDS = 60.0
RESTART_SECONDS = 0.5
EXIT_SECONDS = 5.0


class ApiProcesses:
    """One API process per listener; create it with `api_processes`."""

    def __init__(self, engine: EngineThread, server: EngineServer, path: Path, listeners: Sequence[socket.socket]):
        self._engine = engine
        self._server = server
        self._path = path
        self._ending = False
        self._running: set[asyncio.subprocess.Process] = set()
        self._keepers = [asyncio.create_task(self._keep(listener)) for listener in listeners]
        self._killer = asyncio.create_task(self._kill_offenders())
        self.ended = asyncio.gather(*self._keepers)
        """Completes when all processes have ended after `drain` or `end`."""

    async def joined(self) -> None:
        """Wait until all processes have connected; raise EngineUnavailableError after JOIN_SECONDS."""
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                for _ in self._keepers:
                    await self._server.joined.acquire()
        except TimeoutError as error:
            raise EngineUnavailableError(f"the API processes did not start within {JOIN_SECONDS:.0f} s") from error
        self._server.announce()

    async def drain(self) -> None:
        """Send SIGTERM, after which the processes finish their requests; wait at most the drain timeout."""
        self._ending = True
        self._server.announce()
        await self._signal(signal.SIGTERM, self._engine.config.drain_timeout)

    async def end(self) -> None:
        """Send SIGTERM to the processes, and SIGKILL after EXIT_SECONDS."""
        self._ending = True
        for number in (signal.SIGTERM, signal.SIGKILL):
            await self._signal(number, EXIT_SECONDS)
        self._killer.cancel()

    async def _signal(self, number: int, seconds: float) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
        await asyncio.wait(self._keepers, timeout=seconds)

    async def _kill_offenders(self) -> None:
        """Kill the processes whose links were closed for a protocol violation; they may not end themselves."""
        while True:
            offender = await self._server.offenders.get()
            for process in self._running:
                if process.pid == offender and process.returncode is None:
                    process.kill()

    async def _keep(self, listener: socket.socket) -> None:
        """Run a process on a listener, and restart it when it ends unexpectedly."""
        while not self._ending:
            try:
                process, heartbeat = await self._start(listener)
            except OSError as error:  # memory, processes, threads or descriptors; the others serve
                logger.error("an API process cannot be started and is tried again: %s", error)
                await asyncio.sleep(RESTART_SECONDS)
                continue
            self._running.add(process)
            if self._ending:  # `_signal` ran before the process was in `_running`
                process.terminate()
            watching = asyncio.create_task(_kill_silent(process, heartbeat))
            code = await process.wait()
            watching.cancel()
            heartbeat.close()
            self._running.discard(process)
            if not self._ending:
                logger.error("an API process ended (%s) and is restarted", describe_exit(code))
                await asyncio.sleep(RESTART_SECONDS)
        # In a drain the kernel gives new connections only to the processes that still have requests. Into an open
        # socket from which no process accepts it would put some, which then wait until the server ends.
        listener.close()

    async def _start(self, listener: socket.socket) -> tuple[asyncio.subprocess.Process, Heartbeat]:
        heartbeat = Heartbeat(time.monotonic())
        try:
            process = await start_process(
                sys.executable, "-P", "-m", "orca_master.api_processes.api_process",
                "--engine", str(self._path), "--listener", str(listener.fileno()), "--heartbeat", str(heartbeat.writer),
                pass_fds=(listener.fileno(), heartbeat.writer),
                start_new_session=True,  # Ctrl-C reaches only the master, which then ends the processes in order
            )  # fmt: skip
        except BaseException:
            heartbeat.close()
            raise
        finally:
            heartbeat.close_writer()
        return process, heartbeat


async def _kill_silent(process: asyncio.subprocess.Process, heartbeat: Heartbeat) -> None:
    """Kill a process that gives no sign of life for SILENT_SECONDS, or for FIRST_SECONDS while it starts."""
    while not heartbeat.is_silent(time.monotonic(), process.pid):
        await asyncio.sleep(CHECK_SECONDS)
    logger.error("API process %d gives no sign of life and is killed", process.pid)
    if process.returncode is None:
        process.kill()


@contextlib.asynccontextmanager
async def api_processes(
    engine: EngineThread, server: EngineServer, listeners: Sequence[socket.socket]
) -> AsyncIterator[ApiProcesses]:
    """Run one API process of `server` per listener inside the `async with` block."""
    with tempfile.TemporaryDirectory(prefix="orca-") as folder:
        path = Path(folder) / "engine.sock"
        async with server.listening(path):
            processes = ApiProcesses(engine, server, path, listeners)
            try:
                yield processes
            finally:
                await processes.end()
