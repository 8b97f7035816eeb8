"""The engine over a Unix socket: an API process sees what it would see on the engine's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from orca_master.endpoint import EndpointConfig
from orca_master.engine_client import EngineClient, EngineStatus
from orca_master.engine_link import send
from orca_master.engine_server import EngineServer
from orca_master.engine_types import EngineState, Output, Submission
from orca_master.errors import EngineUnavailableError, QueueFullError, RequestError
from orca_master.link_codec import encode_to_master
from orca_master.link_messages import Submit
from orca_master.remote_engine import RemoteEngine, connect
from orca_master.request import FinishReason, SamplingParameters
from orca_protos import engine_pb2 as pb

MODEL = Path("/models/m")
CONFIG = EndpointConfig(("m",), api_keys=frozenset({"secret"}))
BOUND = 20.0


class FakeEngine(EngineClient):
    """Takes every request but those in `refusals`; the test plays the iterations."""

    def __init__(self) -> None:
        self.state = EngineState.LOADING
        self.receivers: dict[str, Callable[[Output], object]] = {}
        self.released: list[tuple[str, str | None]] = []
        self.refusals: dict[str, Exception] = {}

    @property
    def status(self) -> EngineStatus:
        return EngineStatus(self.state, "", False, 100, 64, 32)

    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        self.receivers[submission.request_id] = receive
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refusal = self.refusals.get(submission.request_id)
        taken.set_exception(refusal) if refusal else taken.set_result(None)
        return taken

    def release(self, request_id: str, ended_as: str | None) -> None:
        del self.receivers[request_id]
        self.released.append((request_id, ended_as))

    async def metrics(self) -> bytes:
        return b"some text"

    def tell(self, request_id: str, token: int, reason: FinishReason | None = None, **more) -> None:
        self.receivers[request_id](Output(request_id, token, reason, **more))


def submission(request_id: str) -> Submission:
    return Submission(request_id, (1, 2, 3), 8, SamplingParameters(logprobs=1), frozenset({7}))


def run(tmp_path: Path, play: Callable[[FakeEngine, EngineServer, RemoteEngine], Awaitable[None]]) -> FakeEngine:
    """Runs a test's coroutine between the two ends of a socket."""
    engine = FakeEngine()

    async def between() -> None:
        server = EngineServer(engine, MODEL, CONFIG)
        async with asyncio.timeout(BOUND):
            async with server.listening(tmp_path / "socket"):
                remote, hello = await connect(tmp_path / "socket")
                assert (hello.model_path, hello.config) == (MODEL, CONFIG)
                listening = asyncio.create_task(remote.listen())
                await server.joined.acquire()
                await play(engine, server, remote)
            await listening

    asyncio.run(between())
    return engine


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_outputs_refusals_and_ends(tmp_path):
    async def play(engine: FakeEngine, _: EngineServer, remote: RemoteEngine) -> None:
        async def collect(name: str) -> list[Output]:
            return [output async for output in remote.generate(submission(name))]

        answers = [asyncio.create_task(collect(name)) for name in "ab"]
        await until(lambda: len(engine.receivers) == 2)
        logprobs = pb.Logprobs(index=0, sampled=-1.5, token=[4], logprob=[-1.0])
        engine.tell("a", 4, logprobs=logprobs)
        engine.tell("b", 5)
        engine.tell("a", 6, FinishReason.LENGTH)
        engine.tell("b", 7, FinishReason.STOP)
        assert await answers[0] == [Output("a", 4, None, logprobs=logprobs), Output("a", 6, FinishReason.LENGTH)]
        assert await answers[1] == [Output("b", 5, None), Output("b", 7, FinishReason.STOP)]

        engine.refusals = {
            "c": RequestError("too long", "max_tokens"),
            "d": QueueFullError("full"),
            "e": EngineUnavailableError("lost"),
        }
        for name, error in engine.refusals.items():
            with pytest.raises(type(error), match=str(error)) as refused:
                await collect(name)
            assert getattr(refused.value, "field", None) == getattr(error, "field", None)
        assert await remote.metrics() == b"some text"
        await until(lambda: len(engine.released) == 5)

    engine = run(tmp_path, play)
    assert sorted(engine.released) == [(name, None) for name in "abcde"]


def test_leaving_says_how(tmp_path):
    """A reader that had enough found a stop string; one that is cancelled lost its client."""

    async def play(engine: FakeEngine, _: EngineServer, remote: RemoteEngine) -> None:
        enough = remote.generate(submission("enough"))
        first = asyncio.create_task(anext(enough))
        await until(lambda: "enough" in engine.receivers)
        engine.tell("enough", 4)
        assert (await first).token == 4
        await enough.aclose()

        gone = asyncio.create_task(anext(remote.generate(submission("gone"))))
        await until(lambda: "gone" in engine.receivers)
        gone.cancel()
        await until(lambda: len(engine.released) == 2)

    engine = run(tmp_path, play)
    assert engine.released == [("enough", "stop"), ("gone", "abort")]


def test_a_change_of_the_engine_is_told(tmp_path):
    async def play(engine: FakeEngine, server: EngineServer, remote: RemoteEngine) -> None:
        assert remote.status.unavailable.startswith("loading: ")
        engine.state = EngineState.SERVING
        await until(lambda: not remote.status.unavailable)
        assert (remote.status.vocabulary_size, remote.status.longest) == (100, 32)
        engine.state = EngineState.FAILED
        server.announce()
        await until(lambda: remote.status.unavailable.startswith("failed: "))

    run(tmp_path, play)


def test_requests_of_a_process_that_is_gone_are_let_go(tmp_path):
    async def play(engine: FakeEngine, _: EngineServer, remote: RemoteEngine) -> None:
        waiting = asyncio.create_task(anext(remote.generate(submission("mine"))))
        _reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
        send(writer, encode_to_master(Submit(0, submission("other"))))
        await until(lambda: len(engine.receivers) == 2)
        writer.close()
        await until(lambda: engine.released == [("other", "abort")])
        engine.tell("mine", 4)
        assert (await waiting).token == 4

    run(tmp_path, play)


def test_a_master_that_is_gone_leaves_nobody_waiting(tmp_path):
    found: list[str] = []

    async def main() -> None:
        engine = FakeEngine()
        async with EngineServer(engine, MODEL, CONFIG).listening(tmp_path / "socket"):
            remote, _ = await connect(tmp_path / "socket")
            listening = asyncio.create_task(remote.listen())
            waiting = asyncio.create_task(anext(remote.generate(submission("a"))))
            await until(lambda: "a" in engine.receivers)
        await listening
        for late in (waiting, anext(remote.generate(submission("b"))), remote.metrics()):
            with pytest.raises(EngineUnavailableError) as refused:
                await late
            found.append(str(refused.value))
        found.append(remote.status.unavailable)

    asyncio.run(asyncio.wait_for(main(), BOUND))
    assert found == ["the engine master has ended"] * 3 + ["stopped: the engine master has ended"]


def test_no_master_at_all(tmp_path):
    with pytest.raises(EngineUnavailableError, match="No such file"):
        asyncio.run(connect(tmp_path / "socket"))
