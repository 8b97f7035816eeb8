"""The engine over a Unix socket: an API process sees what it would see on the engine's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import re
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from orca_contract.state import EngineState
from orca_master.api_processes import link_frames, link_server
from orca_master.api_processes.link_codec import decode_from_master, encode_from_master, encode_to_master
from orca_master.api_processes.link_frames import max_request_bytes, receive, send
from orca_master.api_processes.link_messages import Answer, AskMetrics, FromMaster, Hello, Release, Submit, ToMaster
from orca_master.api_processes.link_server import EngineServer
from orca_master.api_processes.remote_engine import RemoteEngine, connect
from orca_master.endpoint.config import EndpointConfig
from orca_master.engine.engine_client import EngineClient, EngineStatus
from orca_master.engine.messages import Output, Submission
from orca_master.engine.progress import Progress
from orca_master.engine.recovery import Recovery
from orca_master.errors import EngineError, EngineUnavailableError, QueueFullError, RequestError
from orca_master.scheduling.constraint import MAX_GRAMMAR_BYTES, Grammar, GrammarKind
from orca_master.scheduling.request import FinishReason
from orca_master.scheduling.sampling_parameters import SamplingParameters
from orca_protos import engine_pb2 as pb

MODEL = Path("/models/m")
PICKLE = pickle.dumps(Release("a", None))
CONFIG = EndpointConfig(("m",), api_keys=frozenset({"secret"}))
BOUND = 20.0


class FakeEngine(EngineClient):
    """Takes every request but those in `refusals`; the test plays the iterations."""

    def __init__(self) -> None:
        self.state = EngineState.LOADING
        self.receivers: dict[str, Callable[[Output], object]] = {}
        self.released: list[tuple[str, str | None]] = []
        self.refusals: dict[str, Exception] = {}
        self.submitted: list[str] = []
        self.arrivals: list[float] = []
        self.responses: list[tuple[str, int]] = []
        self.waiting: set[str] = set()
        """Requests that are neither taken nor refused."""

    @property
    def status(self) -> EngineStatus:
        return EngineStatus(self.state, "", False, 100, 64, 32, Progress(), 9, 999, Recovery())

    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        self.receivers[submission.request_id] = receive
        self.submitted.append(submission.request_id)
        self.arrivals.append(submission.arrived)
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refusal = self.refusals.get(submission.request_id)
        if submission.request_id not in self.waiting:
            taken.set_exception(refusal) if refusal else taken.set_result(None)
        return taken

    def release(self, request_id: str, ended_as: str | None) -> None:
        del self.receivers[request_id]
        self.released.append((request_id, ended_as))

    def note_response(self, route: str, status: int) -> None:
        self.responses.append((route, status))

    async def metrics(self) -> bytes:
        return b"some text"

    def tell(self, request_id: str, token: int, reason: FinishReason | None = None, **more) -> None:
        self.receivers[request_id](Output(request_id, token, reason, **more))


def submission(request_id: str) -> Submission:
    return Submission(request_id, (1, 2, 3), 8, SamplingParameters(logprobs=1), frozenset({7}))


async def generate(engine: EngineClient, wanted: Submission) -> AsyncIterator[Output]:
    """Submit and yield the outputs up to the last; leaving early cancels the request."""
    outputs: asyncio.Queue[Output] = asyncio.Queue()
    ended_as = None
    try:
        await engine.submit(wanted, outputs.put_nowait)
        while True:
            output = await outputs.get()
            if output.error is not None:
                raise EngineUnavailableError(output.error)
            yield output
            if output.finish_reason is not None:
                return
    except asyncio.CancelledError:
        ended_as = "abort"
        raise
    except GeneratorExit:
        ended_as = "stop"
        raise
    finally:
        engine.release(wanted.request_id, ended_as)


class RawPeer:
    """A connection that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @staticmethod
    async def connect(path: Path) -> RawPeer:
        peer = RawPeer(*await asyncio.open_unix_connection(path))
        assert isinstance(await peer.receive(), Hello)
        return peer

    def send(self, *messages: ToMaster) -> None:
        for message in messages:
            send(self.writer, encode_to_master(message))

    async def receive(self) -> FromMaster:
        frame = await receive(self.reader, lambda: 2**20)
        assert frame is not None
        return decode_from_master(frame)

    async def answer(self, number: int) -> Answer:
        """Return the answer of that number; what comes before is passed over."""
        while True:
            message = await self.receive()
            if isinstance(message, Answer) and message.number == number:
                return message


def run(tmp_path: Path, play: Callable[[FakeEngine, EngineServer, RemoteEngine], Awaitable[None]]) -> FakeEngine:
    """Run a test's coroutine between the two ends of a socket."""
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
            return [output async for output in generate(remote, submission(name))]

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
        enough = generate(remote, submission("enough"))
        first = asyncio.create_task(anext(enough))
        await until(lambda: "enough" in engine.receivers)
        engine.tell("enough", 4)
        assert (await first).token == 4
        await enough.aclose()

        gone = asyncio.create_task(anext(generate(remote, submission("gone"))))
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
        waiting = asyncio.create_task(anext(generate(remote, submission("mine"))))
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
            waiting = asyncio.create_task(anext(generate(remote, submission("a"))))
            await until(lambda: "a" in engine.receivers)
        await listening
        for late in (waiting, anext(generate(remote, submission("b"))), remote.metrics()):
            with pytest.raises(EngineUnavailableError) as refused:
                await late
            found.append(str(refused.value))
        found.append(remote.status.unavailable)

    asyncio.run(asyncio.wait_for(main(), BOUND))
    assert found == ["the engine master has ended"] * 3 + ["stopped: the engine master has ended"]


def test_no_master_at_all(tmp_path):
    with pytest.raises(EngineUnavailableError, match="No such file"):
        asyncio.run(connect(tmp_path / "socket"))


BREACHES = {
    "undecodable": struct.pack("<I", 3) + b"abc",
    "a pickle": struct.pack("<I", len(PICKLE)) + PICKLE,
    "empty": struct.pack("<I", 0),
    "of another kind": struct.pack("<I", 4) + pb.Logprobs(index=1, token=[1]).SerializeToString()[:4],
    "too long": struct.pack("<I", 2**32 - 1),
}


@pytest.mark.parametrize("breach", BREACHES.values(), ids=BREACHES)
def test_a_process_that_breaks_the_protocol_loses_its_link_alone(tmp_path, caplog, breach):
    """Its requests are cancelled and its id is known; other processes notice nothing."""

    async def play(engine: FakeEngine, server: EngineServer, remote: RemoteEngine) -> None:
        waiting = asyncio.create_task(anext(generate(remote, submission("mine"))))
        peer = await RawPeer.connect(tmp_path / "socket")
        peer.send(Submit(0, submission("other")))
        await until(lambda: len(engine.receivers) == 2)
        peer.writer.write(breach)
        assert await server.offenders.get() == os.getpid()
        await until(lambda: engine.released == [("other", "abort")])
        with contextlib.suppress(ConnectionError):
            while await peer.reader.read(100):
                pass
        engine.tell("mine", 4)
        assert (await waiting).token == 4

    run(tmp_path, play)
    assert caplog.text.count("is closed: ") == 1
    assert f"the link to API process {os.getpid()} is closed: " in caplog.text
    assert "Traceback" not in caplog.text


def test_the_limit_of_a_message_follows_the_model():
    """It admits the longest prompt with a bias for every token and the longest grammar, whatever their sizes."""
    status = EngineStatus(EngineState.SERVING, "", False, 5000, 3000, 3008, Progress(), 9, 999, Recovery())
    longest = replace(
        submission("x" * 100),
        prompt=(2**32 - 1,) * 3000,
        sampling=SamplingParameters(logit_bias=tuple((2**32 - 1, 1.5) for _ in range(5000))),
        grammar=Grammar(GrammarKind.REGEX, "ä" * (MAX_GRAMMAR_BYTES // 2)),
    )
    size = len(encode_to_master(Submit(2**64 - 1, longest)))
    assert 0.4 < size / max_request_bytes(status) < 1
    assert max_request_bytes(replace(status, vocabulary_size=0, max_model_len=0)) < 200_000


def test_a_request_belongs_to_the_link_that_submitted_it(tmp_path):
    """A process cannot release, or take the place of, another one's request; unknown ids do nothing."""

    async def play(engine: FakeEngine, _: EngineServer, remote: RemoteEngine) -> None:
        waiting = asyncio.create_task(anext(generate(remote, submission("mine"))))
        await until(lambda: "mine" in engine.receivers)
        peer = await RawPeer.connect(tmp_path / "socket")
        peer.send(Release("mine", "abort"), Release("nobody's", None), Submit(1, submission("mine")))
        refused = await peer.answer(1)
        assert type(refused.error) is RequestError
        peer.send(Submit(2, submission("theirs")), Submit(3, submission("theirs")))
        assert (await peer.answer(2)).error is None
        assert type((await peer.answer(3)).error) is RequestError
        peer.send(Release("theirs", "stop"), Release("theirs", "stop"), AskMetrics(4))
        assert (await peer.answer(4)).value == b"some text"
        assert engine.submitted == ["mine", "theirs"]
        assert engine.released == [("theirs", "stop")]
        engine.tell("mine", 4)
        assert (await waiting).token == 4

    run(tmp_path, play)


def test_the_arrival_of_a_request_is_not_later_than_its_submission(tmp_path):
    """The metrics add the times since then, which are not negative."""

    async def play(engine: FakeEngine, _: EngineServer, remote: RemoteEngine) -> None:
        for arrived in (time.monotonic() - 100, time.monotonic() + 1000):
            await remote.submit(replace(submission(str(arrived)), arrived=arrived), lambda output: None)
        early, late = engine.arrivals
        assert early < time.monotonic() - 99
        assert late <= time.monotonic()

    run(tmp_path, play)


def test_responses_are_counted_by_the_master(tmp_path):
    async def play(engine: FakeEngine, _: EngineServer, remote: RemoteEngine) -> None:
        remote.note_response("/v1/models/{model:path}", 404)
        assert await remote.metrics() == b"some text"
        assert engine.responses == [("/v1/models/{model:path}", 404)]

    run(tmp_path, play)


def test_ended_requests_need_no_release(tmp_path):
    """A process that never releases leaves nothing behind in the master."""

    async def play(engine: FakeEngine, _: EngineServer, __: RemoteEngine) -> None:
        engine.refusals = {"refused": QueueFullError("full")}
        peer = await RawPeer.connect(tmp_path / "socket")
        peer.send(Submit(0, submission("finished")), Submit(1, submission("refused")))
        assert isinstance((await peer.answer(1)).error, QueueFullError)
        engine.tell("finished", 4, FinishReason.STOP)
        assert sorted(engine.released) == [("finished", None), ("refused", None)]
        assert not engine.receivers
        peer.send(Submit(2, submission("finished")))
        assert (await peer.answer(2)).error is None, "the id is free again"

    run(tmp_path, play)


def test_requests_that_wait_for_grammars_delay_no_other_message(tmp_path, monkeypatch):
    """However many of them are unanswered; other requests may come, and theirs may be released."""
    monkeypatch.setattr(link_server, "MAX_UNANSWERED", 2)

    async def play(engine: FakeEngine, _: EngineServer, remote: RemoteEngine) -> None:
        grammar = Grammar(GrammarKind.REGEX, "a")
        slow = [replace(submission(f"slow {number}"), grammar=grammar) for number in range(5)]
        engine.waiting.update(entry.request_id for entry in slow)
        for entry in slow:
            remote.submit(entry, print)
        await remote.submit(submission("other"), print)
        assert engine.submitted == [*(entry.request_id for entry in slow), "other"]
        assert await remote.metrics() == b"some text"
        for name in (slow[0].request_id, "other"):
            remote.release(name, "abort")
        await until(lambda: len(engine.released) == 2)

    run(tmp_path, play)


def test_a_process_that_does_not_read_is_cut_off(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(link_frames, "MAX_UNREAD_BYTES", 1000)

    async def play(engine: FakeEngine, server: EngineServer, _: RemoteEngine) -> None:
        peer = await RawPeer.connect(tmp_path / "socket")
        peer.writer.transport.pause_reading()
        peer.send(Submit(0, submission("deaf")))
        await until(lambda: "deaf" in engine.receivers)
        while "deaf" in engine.receivers:
            engine.tell("deaf", 4, error="x" * 10_000)
            await asyncio.sleep(0)
        assert await server.offenders.get() == os.getpid()

    engine = run(tmp_path, play)
    assert engine.released == [("deaf", "abort")]
    assert re.search(r"is closed: the peer does not read: \d+ bytes are unread", caplog.text)


@pytest.mark.parametrize(
    ("state", "change", "field", "message"),
    [
        (EngineState.LOADING, {"max_gen_tokens": 10**30}, "max_tokens", "is not between 0 and"),
        (
            EngineState.SERVING,
            {"max_gen_tokens": 10**30},
            "max_tokens",
            "tokens: this model's maximum context length is 64 tokens",
        ),
        (EngineState.SERVING, {"sampling": SamplingParameters(min_tokens=4294967296)}, "min_tokens", "4294967295"),
        (EngineState.LOADING, {"prompt": (1,) * 10**6}, None, "the limit is "),
    ],
)
def test_a_request_that_the_link_cannot_carry_is_refused_alone(tmp_path, state, change, field, message):
    async def play(engine: FakeEngine, server: EngineServer, remote: RemoteEngine) -> None:
        engine.state = state
        server.announce()
        await until(lambda: remote.status.state is state)
        waiting = asyncio.create_task(anext(generate(remote, submission("mine"))))
        with pytest.raises(RequestError, match=message) as refused:
            await anext(generate(remote, replace(submission("large"), **change)))
        assert refused.value.field == field
        await until(lambda: "mine" in engine.receivers)
        engine.tell("mine", 4)
        assert (await waiting).token == 4
        assert engine.submitted == ["mine"]

    run(tmp_path, play)


def test_a_fault_of_the_engine_is_an_engine_error(tmp_path, caplog):
    """The API process raises no class that the master names; the cause is in the master's log."""

    async def play(engine: FakeEngine, _: EngineServer, remote: RemoteEngine) -> None:
        engine.refusals = {"a": ZeroDivisionError("by zero")}
        with pytest.raises(EngineError, match="ZeroDivisionError: by zero"):
            await anext(generate(remote, submission("a")))

    run(tmp_path, play)
    assert "ZeroDivisionError: by zero" in caplog.text


@pytest.mark.parametrize("breach", BREACHES.values(), ids=BREACHES)
def test_a_master_that_breaks_the_protocol_is_gone(tmp_path, caplog, breach):
    greeting = encode_from_master(Hello(MODEL, CONFIG, FakeEngine().status))

    async def main() -> None:
        first = [b"", struct.pack("<I", len(greeting)) + greeting]

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(first.pop() + breach)

        async with await asyncio.start_unix_server(serve, tmp_path / "socket"):
            remote, _ = await connect(tmp_path / "socket")
            await remote.listen()
            assert remote.status.unavailable == "stopped: the engine master has ended"
            with pytest.raises(EngineUnavailableError, match="message"):
                await connect(tmp_path / "socket")

    asyncio.run(asyncio.wait_for(main(), BOUND))
    assert caplog.text.count("the link to the master is closed: ") == 1
