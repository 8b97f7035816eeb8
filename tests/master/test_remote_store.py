"""Stored responses of API processes are those of the master."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from orca_master.api_processes.link_server import EngineServer
from orca_master.api_processes.remote_engine import connect
from orca_master.api_processes.remote_store import RemoteStore
from orca_master.endpoint import memory_store
from orca_master.endpoint.config import EndpointConfig
from orca_master.endpoint.response_store import (
    ENDING_BYTES,
    MAX_RESPONSE_BYTES,
    EventPage,
    FoundResponse,
    Phase,
    StoredResponse,
    StoreLimits,
)
from orca_master.errors import EngineUnavailableError, QueueFullError, RequestError
from support.scripted_engine import ScriptedEngine

CONFIG = EndpointConfig(("m",), stored_responses=StoreLimits(2))
BOUND = 20.0


def run(
    tmp_path: Path,
    play: Callable[[RemoteStore, RemoteStore], Awaitable[None]],
    refused: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """Run a test's coroutine with the stores of two API processes; afterwards the link is closed.

    `refused`: what raises EngineUnavailableError then.
    """

    async def between() -> None:
        engine = ScriptedEngine.__new__(ScriptedEngine)
        async with asyncio.timeout(BOUND):
            async with EngineServer(engine, Path("/m"), CONFIG).listening(tmp_path / "socket"):
                remotes = [(await connect(tmp_path / "socket"))[0] for _ in range(2)]
                listening = [asyncio.create_task(remote.listen()) for remote in remotes]
                first, second = map(RemoteStore, remotes)
                await play(first, second)
            await asyncio.gather(*listening)
            for call in (lambda: first.get("", "a"), *([refused] if refused else [])):
                with pytest.raises(EngineUnavailableError):
                    await call()

    asyncio.run(between())


def stored(name: str, previous: str = "", data: bytes = b"x", owner: str = "k") -> StoredResponse:
    return StoredResponse(name, owner, previous, data)


def found(data: bytes) -> FoundResponse:
    return FoundResponse(data, Phase.STORED, 0)


def test_a_response_is_found_by_another_process(tmp_path):
    async def play(first: RemoteStore, second: RemoteStore) -> None:
        assert await first.put(stored("a", data=b"1"))
        assert await second.put(stored("b", "a", data=b"2"))
        assert await second.get("k", "a") == found(b"1")
        assert await first.conversation("k", "b") == [b"1", b"2"]
        assert await first.get("other", "a") is None
        assert not await first.delete("other", "a")
        assert await first.delete("k", "a")
        assert await second.get("k", "a") is None
        assert await second.conversation("k", "b") == []

    run(tmp_path, play)


def test_the_limits_are_those_of_all_processes(tmp_path):
    async def play(first: RemoteStore, second: RemoteStore) -> None:
        for store, name in ((first, "a"), (second, "b"), (first, "c")):
            assert await store.put(stored(name))
        assert [await second.get("k", name) for name in "abc"] == [None, found(b"x"), found(b"x")]

    run(tmp_path, play)


def test_large_responses_pass_the_link_one_by_one(tmp_path):
    async def play(first: RemoteStore, second: RemoteStore) -> None:
        large = bytes(MAX_RESPONSE_BYTES)
        assert (
            await asyncio.gather(*(first.put(stored(f"{number}", data=large)) for number in range(20))) == [True] * 20
        )
        assert await second.get("k", "19") == found(large)
        assert not await first.put(stored("a", data=large + b"x"))

    run(tmp_path, play)


def test_errors_of_the_master_are_raised(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_store, "MAX_CONVERSATION_BYTES", 3)

    async def play(first: RemoteStore, second: RemoteStore) -> None:
        await first.put(stored("a", data=b"12"))
        await first.put(stored("b", "a", data=b"34"))
        with pytest.raises(RequestError, match="previous_response_id: the conversation has more than") as refused:
            await second.conversation("k", "b")
        assert refused.value.field == "previous_response_id"

    run(tmp_path, play)


def test_a_background_response_of_one_process_is_read_and_cancelled_in_another(tmp_path):
    async def play(first: RemoteStore, second: RemoteStore) -> None:
        stopped: list[str] = []
        await first.begin(stored("a"), [b"0"], lambda: stopped.append("a"))
        with pytest.raises(QueueFullError):
            await second.begin(stored("b"), [], lambda: stopped.append("b"))
        assert await second.get("k", "a") == FoundResponse(b"x", Phase.QUEUED, 1)
        readers = [asyncio.create_task(store.events("k", "a", 0)) for store in (first, second, second)]
        await second.get("k", "a")  # behind the readers' messages
        await first.get("k", "a")
        assert not any(reader.done() for reader in readers)
        assert await first.advance("k", "a", [b"1"])
        assert await asyncio.gather(*readers) == [EventPage([b"1"], 2, Phase.IN_PROGRESS)] * 3
        waiting = asyncio.create_task(second.events("k", "a", 1))
        await second.cancel("k", "a")
        assert await waiting == EventPage([], 2, Phase.CANCELLED)
        await first.get("k", "a")
        assert stopped == ["a"]
        assert await first.end("k", "a", b"late", [])
        assert await second.get("k", "a") == FoundResponse(b"x", Phase.CANCELLED, 2)
        await second.begin(stored("b"), [], lambda: stopped.append("b"))
        assert await second.end("k", "b", b"ended", [])
        assert await first.get("k", "b") == FoundResponse(b"ended", Phase.ENDED, 0)
        assert await first.events("k", "unknown", 0) is None

    run(tmp_path, play)


def test_what_is_too_large_for_the_link_is_not_sent(tmp_path):
    async def play(first: RemoteStore, _: RemoteStore) -> None:
        large = bytes(MAX_RESPONSE_BYTES)
        with pytest.raises(RequestError, match="MiB of a stored response"):
            await first.begin(stored("a", data=large + b"x"), [], lambda: None)
        most = large[ENDING_BYTES:]
        await first.begin(stored("a", data=most), [most, most], lambda: None)
        assert not await first.advance("k", "a", [large, b"x"])
        assert not await first.end("k", "a", large, [large + b"x"])
        assert await first.end("k", "a", large, [large])
        page = await first.events("k", "a", 1)
        assert page is not None
        assert (page.events, page.num_events, page.phase) == ([large], 3, Phase.ENDED)

    run(tmp_path, play)


def test_the_end_of_the_master_ends_the_wait_for_events(tmp_path):
    waiting: list[asyncio.Task[EventPage | None]] = []

    async def play(first: RemoteStore, _: RemoteStore) -> None:
        await first.begin(stored("a"), [b"0"], lambda: None)
        waiting.append(asyncio.create_task(first.events("k", "a", 0)))
        await first.get("k", "a")

    run(tmp_path, play, lambda: waiting[0])


def test_the_responses_of_a_process_that_has_ended_are_lost(tmp_path):
    async def play(first: RemoteStore, second: RemoteStore) -> None:
        await first.begin(stored("a"), [b"0"], lambda: None)
        waiting = asyncio.create_task(second.events("k", "a", 0))
        await second.get("k", "a")
        first._engine._writer.close()
        assert await waiting == EventPage([], 1, Phase.LOST)

    run(tmp_path, play)
