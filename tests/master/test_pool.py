"""API processes that cannot be started: the others go on (tests/system/test_api_processes.py has real processes)."""

from __future__ import annotations

import asyncio
import os
import socket
from types import SimpleNamespace
from typing import Any, cast

from orca_master.api_processes import api_process, pool
from orca_master.api_processes.pool import ApiProcesses
from orca_master.errors import ConfigurationError


class Process:
    """A process that ends at the first signal."""

    pid, returncode = 1, None

    def __init__(self) -> None:
        self._ended = asyncio.Event()

    def send_signal(self, _number: int) -> None:
        self._ended.set()

    terminate = kill = lambda self: self.send_signal(0)

    async def wait(self) -> int:
        await self._ended.wait()
        return 0


def test_a_process_that_cannot_be_started_is_tried_again(monkeypatch, tmp_path, caplog):
    """Of memory or processes there may be enough a moment later; the server does not end."""
    failures = [OSError(11, "Resource temporarily unavailable"), OSError(11, "can't start new thread")]
    started: list[Process] = []

    async def create(*_command: str, **_options: Any) -> Process:
        if failures:
            raise failures.pop()
        started.append(Process())
        return started[-1]

    async def run() -> None:
        engine = SimpleNamespace(config=SimpleNamespace(drain_timeout=60.0))
        server = SimpleNamespace(offenders=asyncio.Queue(), announce=lambda: None)
        listeners = [socket.socket() for _ in range(2)]
        processes = ApiProcesses(cast(Any, engine), cast(Any, server), tmp_path, listeners)
        async with asyncio.timeout(60):
            while len(started) < 2:
                await asyncio.sleep(0)
            assert not processes.ended.done()
            await processes.drain()
            await processes.ended
            await processes.end()

    monkeypatch.setattr(pool, "start_process", create)
    monkeypatch.setattr(pool, "RESTART_SECONDS", 0.0)
    asyncio.run(run())
    assert caplog.text.count("an API process cannot be started and is tried again") == 2


def test_a_process_whose_model_cannot_be_read_ends_with_one_line(monkeypatch, capsys):
    """The model's files may have been replaced since the start of the master."""

    async def fails(*_: object) -> None:
        raise ConfigurationError("/m: no tokenizer.json")

    monkeypatch.setattr(api_process, "run", fails)
    monkeypatch.setattr(api_process, "configure_logging", lambda: None)
    with socket.socket() as listener:
        arguments = ["--engine", "socket", "--listener", str(os.dup(listener.fileno())), "--heartbeat", "0"]
        assert api_process.main(arguments) == 1
    assert capsys.readouterr().err == "orca API process: error: /m: no tokenizer.json\n"
