"""A link that breaks while one end writes: the other end's complete messages arrive, whatever the kernel reports."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from orca_contract.state import EngineState
from orca_master.api_processes import link_frames
from orca_master.api_processes.link_codec import encode_from_master, encode_to_master
from orca_master.api_processes.link_messages import (
    Answer,
    CountResponse,
    FromMaster,
    Hello,
    Outputs,
    Release,
    Submit,
    ToMaster,
)
from orca_master.api_processes.link_server import EngineServer
from orca_master.api_processes.remote_engine import connect
from orca_master.endpoint.config import EndpointConfig
from orca_master.engine.engine_client import EngineClient, EngineStatus
from orca_master.engine.messages import Output, Submission
from orca_master.engine.progress import Progress
from orca_master.engine.recovery import Recovery
from orca_master.scheduling.request import FinishReason
from orca_master.scheduling.sampling_parameters import SamplingParameters

CONFIG = EndpointConfig(("m",))
BOUND = 20.0
SUBMISSION = Submission("a", (1, 2, 3), 8, SamplingParameters(), frozenset({7}))


def status(state: EngineState) -> EngineStatus:
    return EngineStatus(state, "", False, 100, 64, 32, Progress(), 9, 999, Recovery())


class NotingEngine(EngineClient):
    """Takes every request and notes all calls."""

    def __init__(self) -> None:
        self.state = EngineState.LOADING
        self.calls: list[tuple[str, object]] = []

    @property
    def status(self) -> EngineStatus:
        return status(self.state)

    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        self.calls.append(("submit", submission.request_id))
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken

    def release(self, request_id: str, ended_as: str | None) -> None:
        self.calls.append((request_id, ended_as))

    def note_response(self, route: str, status: int) -> None:
        self.calls.append((route, status))

    async def metrics(self) -> bytes:
        raise NotImplementedError


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def from_master(*messages: FromMaster) -> bytes:
    return b"".join(framed(encode_from_master(message)) for message in messages)


def to_master(*messages: ToMaster) -> bytes:
    return b"".join(framed(encode_to_master(message)) for message in messages)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("is_read_first", [True, False], ids=["received and unread", "in the kernel"])
def test_the_last_outputs_of_a_master_that_is_gone_arrive(tmp_path, is_read_first):
    """The process writes when the master has closed the link: a request that was answered has its answer."""
    outputs: list[Output] = []
    last = [Output("a", 4, None), Output("a", 5, FinishReason.LENGTH)]

    async def main() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "socket"))
            listener.listen()
            listener.setblocking(False)
            connecting = asyncio.create_task(connect(tmp_path / "socket"))
            master, _ = await asyncio.get_running_loop().sock_accept(listener)
            master.sendall(from_master(Hello(Path("/m"), CONFIG, status(EngineState.SERVING))))
            remote, _ = await connecting
        taken = remote.submit(SUBMISSION, outputs.append)
        master.sendall(from_master(Answer(0), Outputs(last)))
        if is_read_first:
            for _ in range(10):  # the event loop reads, and nobody takes the messages yet
                await asyncio.sleep(0)
        master.close()
        remote.note_response("/v1/completions", 200)
        await asyncio.sleep(0)  # the event loop notes the broken link
        await remote.listen()
        await taken

    asyncio.run(asyncio.wait_for(main(), BOUND))
    assert outputs == last


def test_the_last_messages_of_a_process_that_is_gone_arrive(tmp_path):
    """The master writes when the process has closed the link: its responses and the ends of requests are counted."""
    engine = NotingEngine()

    async def main() -> None:
        server = EngineServer(engine, Path("/m"), CONFIG)
        async with server.listening(tmp_path / "socket"):
            with socket.socket(socket.AF_UNIX) as process:
                process.connect(str(tmp_path / "socket"))
                await server.joined.acquire()
                process.sendall(
                    to_master(Submit(0, SUBMISSION), Release("a", "stop"), CountResponse("/v1/models", 200))
                )
            engine.state = EngineState.SERVING
            server.announce()
            await until(lambda: not server.is_joined)

    asyncio.run(asyncio.wait_for(main(), BOUND))
    assert engine.calls == [("submit", "a"), ("a", "stop"), ("/v1/models", 200)]


def test_a_process_that_goes_on_to_write_does_not_hold_the_master(tmp_path, monkeypatch):
    """A broken link is read up to what had arrived: here the process writes another message at each read."""
    engine = NotingEngine()
    message = to_master(CountResponse("/v1/models", 200))
    writes = iter(range(100))
    refused: list[OSError] = []

    async def main() -> None:
        server = EngineServer(engine, Path("/m"), CONFIG)
        async with server.listening(tmp_path / "socket"):
            with socket.socket(socket.AF_UNIX) as process:

                def read(descriptor: int, size: int) -> bytes:
                    data = os.read(descriptor, size)
                    try:
                        if next(writes, None) is not None:
                            process.sendall(message)
                    except BrokenPipeError as error:
                        refused.append(error)
                    return data

                process.connect(str(tmp_path / "socket"))
                await server.joined.acquire()
                process.sendall(message)
                process.shutdown(socket.SHUT_RD)
                monkeypatch.setattr(link_frames, "os", SimpleNamespace(read=read))
                engine.state = EngineState.SERVING
                server.announce()
                await until(lambda: not server.is_joined)

    asyncio.run(asyncio.wait_for(main(), BOUND))
    assert refused
    assert engine.calls == [("/v1/models", 200)]
