"""`EventStream`: comments in silence, none after the end, and nothing that runs on when the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from orca_master.endpoint import event_stream
from orca_master.endpoint.event_stream import COMMENT, EventStream

SCOPE = {"type": "http", "asgi": {"spec_version": "2.3"}}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "COMMENT_SECONDS", 0.01)


class Client:
    """The server's side of a connection: `bodies` has the sent pieces, with True for the last."""

    def __init__(self) -> None:
        self.bodies: list[tuple[bytes, bool]] = []
        self.left = asyncio.Event()
        self.commented = asyncio.Event()

    async def send(self, message) -> None:
        if message["type"] == "http.response.body":
            self.bodies.append((message["body"], not message["more_body"]))
            if message["body"] == COMMENT:
                self.commented.set()

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}


def run(scene) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scene(Client())

    asyncio.run(bounded())


def test_a_silent_stream_has_comments_between_its_events():
    async def scene(client: Client) -> None:
        first = asyncio.create_task(client.commented.wait())

        async def events() -> AsyncIterator[list[str]]:
            await first
            client.commented.clear()
            yield ["a"]
            await client.commented.wait()
            yield ["b"]

        await EventStream(events(), first)(SCOPE, client.receive, client.send)
        await asyncio.sleep(0.05)
        bodies = [body for body, _ in client.bodies]
        assert [body for body in bodies if body != COMMENT] == [b"a", b"b", b""]
        assert bodies[0] == COMMENT
        assert COMMENT in bodies[bodies.index(b"a") : bodies.index(b"b")]
        assert [last for _, last in client.bodies] == [False] * (len(bodies) - 1) + [True]

    run(scene)


def test_events_that_come_together_are_sent_in_one_piece():
    async def scene(client: Client) -> None:
        async def events() -> AsyncIterator[list[str]]:
            yield ["a", "b"]
            yield ["c"]

        first = asyncio.create_task(asyncio.sleep(0))
        await first
        await EventStream(events(), first)(SCOPE, client.receive, client.send)
        assert [body for body, _ in client.bodies] == [b"ab", b"c", b""]

    run(scene)


def test_a_stream_that_is_not_silent_has_no_comments(monkeypatch):
    monkeypatch.setattr(event_stream, "COMMENT_SECONDS", 60.0)

    async def scene(client: Client) -> None:
        async def events() -> AsyncIterator[list[str]]:
            for text in "abc":
                await asyncio.sleep(0.01)
                yield [text]

        first = asyncio.create_task(asyncio.sleep(0))
        await first
        await EventStream(events(), first)(SCOPE, client.receive, client.send)
        assert [body for body, _ in client.bodies] == [b"a", b"b", b"c", b""]

    run(scene)


@pytest.mark.parametrize("leaves", ["before the stream runs", "later"])
def test_a_client_that_leaves_ends_the_wait_for_the_first_piece(leaves):
    async def scene(client: Client) -> None:
        first = asyncio.create_task(asyncio.sleep(3600))

        async def events() -> AsyncIterator[list[str]]:
            await first
            yield ["a"]

        if leaves == "later":
            asyncio.get_running_loop().call_later(0.05, client.left.set)
        else:
            client.left.set()
        await EventStream(events(), first)(SCOPE, client.receive, client.send)
        await asyncio.gather(first, return_exceptions=True)
        assert first.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(scene)
