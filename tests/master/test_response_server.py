"""The master's answers about background responses: links are informed, and what a lost link generated has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from orca_master.api_processes.link_messages import (
    AdvanceResponse,
    AskEvents,
    AskResponses,
    BeginResponse,
    CancelResponse,
    DeleteResponse,
    EndResponse,
    ResponsesChanged,
    StopResponse,
)
from orca_master.api_processes.link_responses import FALSE, TRUE, decode_found, decode_page
from orca_master.api_processes.response_server import ResponseLink, ResponseServer
from orca_master.endpoint.memory_store import MemoryStore
from orca_master.endpoint.response_store import (
    MAX_RESPONSE_BYTES,
    EventPage,
    FoundResponse,
    Phase,
    StoredResponse,
    StoreLimits,
)


class Links:
    """A server, the link that generates a response and the link of a reader, with the messages that each has got."""

    def __init__(self) -> None:
        self.server = ResponseServer(MemoryStore(StoreLimits()))
        self.sent: list[Any] = []
        self.read: list[Any] = []
        self.runner, self.reader = ResponseLink(self.sent.append), ResponseLink(self.read.append)

    async def begin(self, name: str = "a") -> None:
        message = BeginResponse(1, StoredResponse(name, "k", "", b"x"), [b"0"])
        assert await self.server.answer(self.runner, message) == TRUE

    async def ask(self, after: int, name: str = "a") -> EventPage | None:
        return decode_page(await self.server.answer(self.reader, AskEvents(1, "k", name, after)))

    async def phase(self, name: str = "a") -> Phase | None:
        found = decode_found(await self.server.answer(self.reader, AskResponses(1, "k", name, False)))
        return None if found is None else found.phase


def play(scene: Callable[[Links], Awaitable[None]]) -> None:
    async def run() -> None:
        links = Links()
        await links.begin()
        await scene(links)

    asyncio.run(run())


def test_a_reader_learns_of_the_next_change_once():
    async def scene(links: Links) -> None:
        assert await links.ask(-1) == EventPage([b"0"], 1, Phase.QUEUED)
        assert await links.ask(0) == EventPage([], 1, Phase.QUEUED)
        assert await links.ask(0) == EventPage([], 1, Phase.QUEUED)
        for event in (b"1", b"2"):
            assert await links.server.answer(links.runner, AdvanceResponse(1, "k", "a", [event])) == TRUE
            await asyncio.sleep(0)
        assert links.read == [ResponsesChanged(["a"])]
        assert await links.ask(0) == EventPage([b"1", b"2"], 3, Phase.IN_PROGRESS)
        assert await links.ask(0, "unknown") is None
        too_large = AdvanceResponse(1, "k", "a", [b"x" * MAX_RESPONSE_BYTES, b"x"])
        assert await links.server.answer(links.runner, too_large) == FALSE

    play(scene)


def test_changes_of_one_step_are_one_message():
    async def scene(links: Links) -> None:
        await links.begin("b")
        for name in "ab":
            await links.ask(0, name)
        for name in "ab":
            await links.server.answer(links.runner, AdvanceResponse(1, "k", name, [b"1"]))
        await asyncio.sleep(0)
        assert links.read == [ResponsesChanged(["a", "b"])]

    play(scene)


def test_the_runner_is_stopped_by_a_cancellation_and_a_deletion_of_any_link():
    async def scene(links: Links) -> None:
        await links.begin("b")
        for message in (CancelResponse(1, "k", "a"), DeleteResponse(1, "k", "b"), CancelResponse(1, "k", "a")):
            assert await links.server.answer(links.reader, message) == TRUE
        assert links.sent == [StopResponse("a"), StopResponse("b")]
        assert (await links.phase("a"), await links.phase("b"), links.runner.running) == (Phase.CANCELLED, None, {})

    play(scene)


def test_the_responses_of_a_link_that_has_ended_are_lost():
    async def scene(links: Links) -> None:
        await links.begin("b")
        await links.ask(0)
        assert await links.server.answer(links.runner, EndResponse(1, "k", "b", b"ended", [b"1"])) == TRUE
        links.server.lose(links.runner)
        await asyncio.sleep(0)
        assert (await links.phase("a"), await links.phase("b")) == (Phase.LOST, Phase.ENDED)
        assert (links.sent, links.read) == ([], [ResponsesChanged(["a"])])
        await links.begin("c")
        assert await links.phase("c") is Phase.LOST, "its message came just before the end"
        found = await links.server.answer(links.reader, AskResponses(1, "k", "b", False))
        assert decode_found(found) == FoundResponse(b"ended", Phase.ENDED, 2)

    play(scene)
