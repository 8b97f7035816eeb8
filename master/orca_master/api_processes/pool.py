"""`ApiProcesses`: the endpoint as several processes around the one that schedules (`--api-processes`).

Each has a listening socket of its own on the same port; the kernel shares connections out between them (SO_REUSEPORT).
The master holds the sockets, so that a process that ends unasked is replaced without a refused connection. A process
that breaks the protocol of its link (link_server.py) is killed, and replaced in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from orca_master.api_processes.link_server import EngineServer
from orca_master.endpoint.config import EndpointConfig
from orca_master.engine.engine_thread import EngineThread
from orca_master.errors import EngineUnavailableError

logger = logging.getLogger(__name__)

JOIN_SECONDS = 60.0
RESTART_SECONDS = 0.5
EXIT_SECONDS = 5.0


class ApiProcesses:
    """Made by `api_processes`."""

    def __init__(self, server: EngineServer, path: Path, listeners: Sequence[socket.socket], drain_timeout: float):
        self._server = server
        self._path = path
        self._drain_timeout = drain_timeout
        self._ending = False
        self._running: set[asyncio.subprocess.Process] = set()
        self._keepers = [asyncio.create_task(self._keep(listener)) for listener in listeners]
        self._killer = asyncio.create_task(self._kill_offenders())
        self.ended = asyncio.gather(*self._keepers)
        """Done when they could not be kept: no process can be started."""

    async def joined(self) -> None:
        """Return when each process has come and knows the engine; raise EngineUnavailableError after a bound."""
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                for _ in self._keepers:
                    await self._server.joined.acquire()
        except TimeoutError as error:
            raise EngineUnavailableError(f"the API processes did not start within {JOIN_SECONDS:.0f} s") from error
        self._server.announce()

    async def drain(self) -> None:
        """Tells the processes to end after what is under way; waits for that, within the drain timeout."""
        self._ending = True
        self._server.announce()
        await self._signal(signal.SIGTERM, self._drain_timeout)

    async def end(self) -> None:
        """End the processes, by force those that do not end within a bound."""
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
        """Kills the processes whose links the server has closed; they may not be able or willing to end."""
        while True:
            offender = await self._server.offenders.get()
            for process in self._running:
                if process.pid == offender and process.returncode is None:
                    process.kill()

    async def _keep(self, listener: socket.socket) -> None:
        """Run a process on a listener, and another one when it ends unasked."""
        while not self._ending:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "orca_master.api_processes.api_process",
                "--engine", str(self._path), "--listener", str(listener.fileno()),
                pass_fds=(listener.fileno(),),
                start_new_session=True,  # Ctrl-C reaches the master alone, which then ends them in order
            )  # fmt: skip
            self._running.add(process)
            if self._ending:  # `_signal` came before the process was known
                process.terminate()
            code = await process.wait()
            self._running.discard(process)
            if not self._ending:
                logger.error("an API process ended with exit code %d: another one takes its place", code)
                await asyncio.sleep(RESTART_SECONDS)


@contextlib.asynccontextmanager
async def api_processes(
    engine: EngineThread, model_path: Path, config: EndpointConfig, listeners: Sequence[socket.socket]
) -> AsyncIterator[ApiProcesses]:
    """Run a process for each listener while the block runs."""
    with tempfile.TemporaryDirectory(prefix="orca-") as folder:
        path = Path(folder) / "engine.sock"
        server = EngineServer(engine, model_path, config)
        async with server.listening(path):
            processes = ApiProcesses(server, path, listeners, config.drain_timeout)
            try:
                yield processes
            finally:
                await processes.end()
