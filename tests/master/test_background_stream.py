"""The stream of a stored background response: its last event in every phase, slow readers, and the end of the store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from orca_master.bodies.response_requests import ResponseRequest
from orca_master.endpoint.background import BackgroundRuns
from orca_master.endpoint.background_stream import stored_stream
from orca_master.endpoint.memory_store import MemoryStore
from orca_master.endpoint.response_objects import begun_response, wire_event
from orca_master.endpoint.response_record import record
from orca_master.endpoint.response_store import StoredResponse, StoreLimits
from orca_master.errors import EngineUnavailableError

NAME = "resp_1"
BODY = ResponseRequest(input="a", background=True, stream=True)
DATA = record(begun_response(BODY, NAME, 5, "m", True), BODY.items)


class Reader:
    """A client of the stream that reads one message at a time, when `messages` has a place."""

    def __init__(self, store: Any, runs: BackgroundRuns, after: int = -1, places: int = 1000) -> None:
        self.events: list[dict[str, Any]] = []
        self._places = asyncio.Semaphore(places)
        self.task = asyncio.create_task(self._read(stored_stream(store, runs, "k", NAME, after)))

    async def _read(self, stream: Any) -> None:
        async def send(message: Any) -> None:
            await self._places.acquire()
            for event in message.get("body", b"").decode().split("\n\n"):
                if event and not event.startswith(":"):
                    self.events.append(json.loads(event.partition("data: ")[2]))

        async def receive() -> Any:
            await asyncio.Event().wait()

        await stream({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)

    def read(self, places: int) -> None:
        for _ in range(places):
            self._places.release()

    @property
    def numbers(self) -> list[int]:
        return [event["sequence_number"] for event in self.events]


def event(number: int) -> bytes:
    return wire_event({"type": "response.output_text.delta", "delta": str(number)}, number).encode()


def play(scene: Callable[[MemoryStore, BackgroundRuns], Awaitable[None]]) -> None:
    async def run() -> None:
        store = MemoryStore(StoreLimits())
        await store.begin(StoredResponse(NAME, "k", "", DATA), [event(0), event(1)], lambda: None)
        await scene(store, BackgroundRuns())

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize(
    ("ending", "last", "status"),
    [("end", "response.output_text.delta", None), ("cancel", "response.incomplete", "cancelled"),
     ("lose", "response.failed", "failed")],
)  # fmt: skip
@pytest.mark.parametrize("live", [False, True])
def test_every_reader_gets_the_same_last_event(ending, last, status, live):
    async def scene(store: MemoryStore, runs: BackgroundRuns) -> None:
        async def end() -> None:
            await store.advance("k", NAME, [event(2)])
            if ending == "end":
                await store.end("k", NAME, DATA, [event(3)])
            elif ending == "cancel":
                await store.cancel("k", NAME)
            else:
                store.lose("k", NAME)

        afters = (-1, 0, 1, 2, 3, 9)
        if not live:
            await end()
        readers = [Reader(store, runs, after) for after in afters]
        if live:
            await asyncio.sleep(0.01)
            assert not runs.activity.idle.is_set()
            await end()
        await asyncio.gather(*(reader.task for reader in readers))
        assert [reader.numbers for reader in readers] == [list(range(after + 1, 4)) for after in afters]
        final = readers[0].events[-1]
        assert final["type"] == last
        assert final.get("response", {}).get("status") == status
        assert runs.activity.idle.is_set()

    play(scene)


def test_a_slow_reader_holds_a_page_and_nobody_up():
    async def scene(store: MemoryStore, runs: BackgroundRuns) -> None:
        slow, fast = Reader(store, runs, places=1), Reader(store, runs)
        for number in range(2, 200):
            await store.advance("k", NAME, [event(number)])
            await asyncio.sleep(0)
        await store.end("k", NAME, DATA, [])
        await fast.task
        assert (fast.numbers, slow.numbers) == (list(range(200)), [])
        slow.read(1000)
        await slow.task
        assert slow.numbers == fast.numbers

    play(scene)


def test_the_stream_of_a_deleted_response_ends():
    async def scene(store: MemoryStore, runs: BackgroundRuns) -> None:
        reader = Reader(store, runs)
        await asyncio.sleep(0.01)
        await store.delete("k", NAME)
        await reader.task
        assert reader.numbers == [0, 1]
        late = Reader(store, runs)
        await late.task
        assert late.events == []

    play(scene)


def test_a_reader_that_leaves_is_not_waited_for():
    async def scene(store: MemoryStore, runs: BackgroundRuns) -> None:
        reader = Reader(store, runs)
        await asyncio.sleep(0.01)
        reader.task.cancel()
        await asyncio.gather(reader.task, return_exceptions=True)
        await runs.activity.idle.wait()

    play(scene)


def test_the_end_of_the_master_ends_the_stream():
    async def scene(store: MemoryStore, runs: BackgroundRuns) -> None:
        async def gone(*_: Any) -> Any:
            raise EngineUnavailableError("the engine master has ended")

        reader = Reader(store, runs)
        await asyncio.sleep(0.01)
        store.events = gone  # type: ignore[method-assign]
        await store.advance("k", NAME, [event(2)])
        await reader.task
        assert reader.numbers == [0, 1, 2]

    play(scene)
