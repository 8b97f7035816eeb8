"""Background responses through the official client, over an engine that answers when the test lets it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, cast

import openai
import pytest
from orca_master.endpoint.api_keys import digest
from orca_master.endpoint.response_store import StoreLimits
from orca_master.errors import QueueFullError
from orca_master.scheduling.request import FinishReason
from support.played_engine import PlayedEngine
from support.scripted_engine import END, MODEL, Scripted, make_model

UNKNOWN = f"resp_{0:032x}"
TEMPLATE = "{{ messages | tojson }}"
ANSWER = "abcdef"


class Play:
    """A server and the client of a scene."""

    def __init__(self, folder: Any, answer: str = f"{ANSWER}{END}", **options: Any) -> None:
        self.server = Scripted(
            make_model(folder, TEMPLATE), answer, options.pop("reason", FinishReason.STOP), PlayedEngine, **options
        )
        self.engine = cast(PlayedEngine, self.server.engine)

    def run(self, scene: Callable[[Any], Awaitable[None]]) -> None:
        async def play() -> None:
            async with self.server as client:
                self.client = client
                self.responses: Any = client.responses
                await scene(self.responses)

        asyncio.run(asyncio.wait_for(play(), 60))

    async def begin(self, **options: Any) -> Any:
        return await self.responses.create(**{"model": MODEL, "input": "Hi", "background": True, **options})

    async def reaches(self, status: str, response_id: str) -> Any:
        """Wait until a response has a status."""
        while (response := await self.responses.retrieve(response_id)).status != status:
            await asyncio.sleep(0.001)
        return response

    async def streamed(self, count: int = 1_000_000, **options: Any) -> list[Any]:
        """Return the events of a background response for which the engine plays `count` tokens."""

        async def play() -> None:
            submitted = len(self.engine.submissions)
            while len(self.engine.submissions) == submitted:
                await asyncio.sleep(0.001)
            self.engine.play(count)

        playing = asyncio.create_task(play())
        events = [event async for event in await self.begin(stream=True, **options)]
        await playing
        return events


@pytest.fixture
def play(tmp_path):
    return Play(tmp_path)


def test_a_response_is_queued_in_progress_and_complete(play):
    async def scene(responses: Any) -> None:
        begun = await play.begin(metadata={"a": "b"})
        assert (begun.status, begun.background, begun.output, begun.usage) == ("queued", True, [], None)
        assert (await responses.retrieve(begun.id)).to_dict() == begun.to_dict()
        assert [item.content[0].text for item in (await responses.input_items.list(begun.id)).data] == ["Hi"]
        play.engine.play(2)
        running = await play.reaches("in_progress", begun.id)
        assert running.output == []
        play.engine.play()
        ended = await play.reaches("completed", begun.id)
        assert (ended.output_text, ended.usage.output_tokens, ended.metadata) == (ANSWER, len(ANSWER) + 1, {"a": "b"})
        second = await play.begin(previous_response_id=begun.id)
        play.engine.play()
        await play.reaches("completed", second.id)
        assert ANSWER in play.server.prompt

    play.run(scene)


def test_a_stream_has_the_events_of_the_whole_answer_and_of_its_queue(play):
    async def scene(responses: Any) -> None:
        events = await play.streamed()
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.type for event in events[:3]] == [
            "response.created", "response.queued", "response.in_progress",
        ]  # fmt: skip
        assert [event.response.status for event in events[:3]] == ["queued", "queued", "in_progress"]
        assert events[-1].type == "response.completed"
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == ANSWER
        final = events[-1].response
        assert (await responses.retrieve(final.id)).to_dict() == final.to_dict()
        for after in range(len(events)):
            again = [event async for event in await responses.retrieve(final.id, stream=True, starting_after=after)]
            assert again == events[after + 1 :]
        assert [event async for event in await responses.retrieve(final.id, stream=True)] == events
        async with responses.stream(response_id=final.id, starting_after=4) as stream:
            assert (await stream.get_final_response()).output_text == ANSWER

    play.run(scene)


def test_cancellation_frees_the_engine_and_can_be_repeated(play):
    async def scene(responses: Any) -> None:
        for tokens, status in ((0, "queued"), (2, "in_progress")):
            begun = await play.begin(stream=False)
            play.engine.play(tokens)
            await play.reaches(status, begun.id)
            cancelled = await responses.cancel(begun.id)
            assert (cancelled.status, cancelled.output, cancelled.error) == ("cancelled", [], None)
            while begun.id not in play.engine.aborted:
                await asyncio.sleep(0)
            assert (await responses.cancel(begun.id)).to_dict() == cancelled.to_dict()
            assert (await responses.retrieve(begun.id)).to_dict() == cancelled.to_dict()
        ended = await play.begin()
        play.engine.play()
        await play.reaches("completed", ended.id)
        assert (await responses.cancel(ended.id)).status == "completed"
        await play.server.endpoint.background.activity.idle.wait()

    play.run(scene)


def test_only_background_responses_can_be_cancelled_or_streamed_again(play):
    async def scene(responses: Any) -> None:
        waiting = asyncio.create_task(responses.create(model=MODEL, input="Hi"))
        while not play.engine.submissions:
            await asyncio.sleep(0.001)
        play.engine.play()
        foreground = await waiting
        with pytest.raises(openai.BadRequestError, match="background: true") as refused:
            await responses.cancel(foreground.id)
        assert refused.value.param == "response_id"
        without_stream = await play.begin()
        for response_id in (foreground.id, without_stream.id):
            with pytest.raises(openai.BadRequestError, match="stream: true") as refused:
                await responses.retrieve(response_id, stream=True)
            assert refused.value.param == "stream"
        with pytest.raises(openai.BadRequestError, match="only allowed with stream"):
            await responses.retrieve(without_stream.id, starting_after=1)
        with pytest.raises(openai.BadRequestError) as refused:
            await responses.retrieve(without_stream.id, stream=True, starting_after=-1)
        assert refused.value.param == "starting_after"
        with pytest.raises(openai.NotFoundError):
            await responses.cancel(UNKNOWN)

    play.run(scene)


def test_deletion_cancels(play):
    async def scene(responses: Any) -> None:
        begun = await play.begin()
        await responses.delete(begun.id)
        while begun.id not in play.engine.aborted:
            await asyncio.sleep(0)
        for call in (responses.retrieve(begun.id), responses.cancel(begun.id)):
            with pytest.raises(openai.NotFoundError):
                await call

    play.run(scene)


def test_another_key_finds_nothing(tmp_path):
    play = Play(tmp_path, api_keys=frozenset({digest("one"), digest("two")}))

    async def scene(_: Any) -> None:
        one, two = (play.client.with_options(api_key=key).responses for key in ("one", "two"))
        play.responses = one
        begun = (await play.streamed())[0].response
        for call in (
            two.retrieve(begun.id),
            two.cancel(begun.id),
            two.delete(begun.id),
            two.retrieve(begun.id, stream=True),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        assert (await one.retrieve(begun.id)).status == "completed"

    play.run(scene)


def test_a_response_in_progress_cannot_be_continued(play):
    async def scene(responses: Any) -> None:
        begun = await play.begin()
        with pytest.raises(openai.BadRequestError, match="in progress: wait for its end") as refused:
            await play.begin(previous_response_id=begun.id)
        assert refused.value.param == "previous_response_id"
        await responses.cancel(begun.id)
        await play.begin(previous_response_id=begun.id)

    play.run(scene)


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_queue_refuses_is_refused_at_once(play, stream):
    async def scene(_: Any) -> None:
        play.engine.refusal = QueueFullError("the queue is full")
        with pytest.raises(openai.RateLimitError, match="the queue is full"):
            await play.begin(stream=stream)
        assert play.server.endpoint.responses.shelves.count == 0
        assert play.server.endpoint.background.activity.idle.is_set()

    play.run(scene)


@pytest.mark.parametrize(
    ("limits", "options", "words"),
    [
        (StoreLimits(), {"store": False}, "with store: true"),
        (StoreLimits(0), {}, "stores no responses"),
        (StoreLimits(), {"instructions": "a" * 9000}, "half of"),
    ],
)
def test_what_cannot_be_stored_is_refused(tmp_path, limits, options, words):
    play = Play(tmp_path, stored_responses=StoreLimits(limits.count, 20_000))

    async def scene(_: Any) -> None:
        with pytest.raises(openai.BadRequestError, match=words) as refused:
            await play.begin(**options)
        assert refused.value.param == "background"
        assert play.engine.submissions == []

    play.run(scene)


def test_running_responses_are_bounded(tmp_path):
    play = Play(tmp_path, stored_responses=StoreLimits(4), api_keys=frozenset({digest(key) for key in "abc"}))

    async def scene(_: Any) -> None:
        one, two, three = (play.client.with_options(api_key=key).responses for key in "abc")
        begun = []
        for responses, refused in ((one, False), (one, False), (one, True), (two, False), (two, True), (three, True)):
            with contextlib.ExitStack() as stack:
                if refused:
                    stack.enter_context(pytest.raises(openai.RateLimitError, match="wait until one has ended"))
                begun.append(await responses.create(model=MODEL, input="Hi", background=True))
        assert len(begun) == 3
        await one.cancel(begun[0].id)
        await three.create(model=MODEL, input="Hi", background=True)

    play.run(scene)


@pytest.mark.parametrize(("stream", "num_bytes"), [(False, 15_000), (True, 100_000)])
def test_an_answer_that_has_no_room_fails(tmp_path, stream, num_bytes):
    play = Play(tmp_path, answer=f"{'a' * 20_000}{END}", stored_responses=StoreLimits(10, num_bytes))

    async def scene(responses: Any) -> None:
        if stream:
            events = await play.streamed(10_000)
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert [event.type for event in events[-2:]] == ["response.output_text.delta", "response.failed"]
            failed = events[-1].response
            assert (await responses.retrieve(failed.id)).to_dict() == failed.to_dict()
            assert play.engine.aborted == [failed.id], "the generation ends with the room"
            assert set(failed.output_text) == {"a"}
        else:
            begun = await play.begin()
            play.engine.play()
            failed = await play.reaches("failed", begun.id)
            assert failed.output == []
        assert failed.error.code == "server_error"
        assert "--max-stored-response-bytes" in failed.error.message

    play.run(scene)


def test_a_deadline_ends_a_response(play):
    async def scene(_: Any) -> None:
        begun = await play.begin(extra_headers={"X-Request-Deadline": "2"})
        failed = await play.reaches("failed", begun.id)
        assert failed.error.message.startswith("not finished within")
        assert play.engine.aborted == [begun.id]

    play.run(scene)


def test_an_error_of_the_engine_ends_a_response(play):
    async def scene(responses: Any) -> None:
        begun = await play.begin(stream=False)
        play.engine.play(2)
        play.engine.fail("the server ends")
        failed = await play.reaches("failed", begun.id)
        assert (failed.error.code, failed.error.message) == ("server_error", "the server ends")
        assert failed.output_text == ANSWER[:2]

    play.run(scene)


def test_an_internal_error_ends_a_response(play, monkeypatch):
    async def scene(responses: Any) -> None:
        begun = await play.begin()
        monkeypatch.setattr("orca_master.endpoint.response_answer.ResponseAnswer.feed", lambda *_: 1 / 0)
        play.engine.play(1)
        failed = await play.reaches("failed", begun.id)
        assert failed.error.message == "internal error: ZeroDivisionError"
        assert play.engine.aborted == [begun.id]

    play.run(scene)


def test_the_end_of_the_server_waits_for_responses_and_readers(play):
    async def scene(_: Any) -> None:
        begun = await play.begin()
        draining = asyncio.create_task(play.server.endpoint.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        play.engine.play()
        await draining
        assert (await play.responses.retrieve(begun.id)).status == "completed"
        with play.server.endpoint.background.activity.one():
            draining = asyncio.create_task(play.server.endpoint.drain())
            await asyncio.sleep(0)
            assert not draining.done()
        await draining

    play.run(scene)


def test_a_client_that_leaves_before_the_acceptance_leaves_nothing(play):
    async def scene(_: Any) -> None:
        accepted = asyncio.get_running_loop().create_future()
        play.engine.submit = lambda submission, receive: accepted
        endpoint = play.server.endpoint
        request = asyncio.create_task(play.begin())
        while not endpoint.responses.shelves.count:
            await asyncio.sleep(0)
        request.cancel()  # without a connection between them, the server's task, too
        with pytest.raises(openai.InternalServerError, match="the server is shutting down"):
            await request
        while endpoint.responses.shelves.count or not endpoint.generator.activity.idle.is_set():
            await asyncio.sleep(0)

    play.run(scene)
