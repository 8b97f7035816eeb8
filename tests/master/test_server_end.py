"""How a server ends whose HTTP server or API processes have failed: exit code 1, and one line that names the cause."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from orca_contract.topology import Communication, ModelSpec, PipelineSpec, Topology
from orca_master.api_processes.pool import ApiProcesses
from orca_master.commands import server
from orca_master.commands.ports import Ports
from orca_master.commands.server import run_to_exit_code
from orca_master.endpoint.config import EndpointConfig
from orca_master.engine.config import EngineConfig
from orca_protos.listening import listen
from support.no_threads import no_threads

TOPOLOGY = Topology(
    model=ModelSpec(path="/m", served_name="m", dtype="float32"),
    pipeline_parallel_size=1,
    tensor_parallel_size=1,
    communication=Communication(),
    pipelines=[PipelineSpec(id="a", workers=["unix:/w"])],
)
CONFIG = EndpointConfig(("m",), num_processes=1)
NO_PORTS = Ports(())


class PlayedEngine:
    """An engine that forms after `steps` steps of the event loop, and never fails."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.engine = SimpleNamespace(snapshot=SimpleNamespace(loaded_bytes=()))
        self.calls: list[str] = []

    async def start(self) -> None:
        for _ in range(self._steps):
            await asyncio.sleep(0)

    async def failure(self) -> str:
        await asyncio.Event().wait()
        return ""

    def begin_drain(self) -> None:
        self.calls.append("drain")

    async def stop(self, _: str) -> None:
        self.calls.append("stop")


class PlayedProcesses(ApiProcesses):
    """API processes whose keeper ends as `end` does, after ten steps of the event loop."""

    def __init__(self, end: Exception | None) -> None:
        self.ended = asyncio.gather(self._keep_on(end))

    async def _keep_on(self, end: Exception | None) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        if end is not None:
            raise end

    async def joined(self) -> None:
        pass

    async def drain(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _unchanged_signals() -> Iterator[None]:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def ended(monkeypatch: pytest.MonkeyPatch, engine: PlayedEngine, end: Exception | None, ports: Ports = NO_PORTS) -> int:
    """Return the exit code of a server with that engine, whose API processes end by themselves."""

    class PlayedEndpoint:
        resumable = batches = adapter_loader = None
        config = CONFIG
        abandon_batches = staticmethod(lambda: asyncio.sleep(0))
        interrupt = staticmethod(lambda: None)

    @contextlib.asynccontextmanager
    async def processes(*_: Any) -> AsyncIterator[PlayedProcesses]:
        yield PlayedProcesses(end)

    for name in ("TextCodec", "ChatTemplate", "Metrics", "EngineServer", "_begin_service"):
        monkeypatch.setattr(server, name, lambda *_: None)
    monkeypatch.setattr(server, "make_engine", lambda *_: engine)
    monkeypatch.setattr(server, "Endpoint", lambda *_, **__: PlayedEndpoint())
    monkeypatch.setattr(server, "api_processes", processes)
    return run_to_exit_code("orca master", TOPOLOGY, EngineConfig(), CONFIG, ports)


@pytest.mark.parametrize("steps", [0, 1000], ids=["while it serves", "while it loads"])
@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (ValueError("damaged"), "ended unexpectedly: ValueError('damaged')"),
        (MemoryError(), "ended unexpectedly: MemoryError()"),
        (None, "ended unexpectedly"),
    ],
)
def test_a_server_without_its_api_processes_ends_with_an_error(monkeypatch, capfd, steps, end, cause):
    engine = PlayedEngine(steps)
    assert ended(monkeypatch, engine, end) == 1
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("orca master: error: the API processes ")
    assert cause in lines[0]
    assert engine.calls[-1] == "stop"


def test_it_lets_running_requests_finish_before(monkeypatch):
    engine = PlayedEngine(0)
    assert ended(monkeypatch, engine, ValueError("damaged")) == 1
    assert engine.calls == ["drain", "stop"]


def test_a_start_without_a_thread_for_the_probes_is_one_line(monkeypatch, capfd):
    """At a limit of threads."""
    with no_threads():
        assert ended(monkeypatch, PlayedEngine(0), None, Ports((), probes=listen("127.0.0.1", 0))) == 1
    line = "orca master: error: the thread of the probes does not start: can't start new thread\n"
    assert capfd.readouterr().err == line
