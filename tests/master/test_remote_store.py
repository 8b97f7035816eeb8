"""Stored responses of API processes are those of the master."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from orca_master.api_processes.link_server import EngineServer
from orca_master.api_processes.remote_engine import connect
from orca_master.api_processes.remote_store import RemoteStore
from orca_master.endpoint import response_store
from orca_master.endpoint.config import EndpointConfig
from orca_master.endpoint.response_store import MAX_RESPONSE_BYTES, StoredResponse, StoreLimits
from orca_master.errors import EngineUnavailableError, RequestError
from support.scripted_engine import ScriptedEngine

CONFIG = EndpointConfig(("m",), stored_responses=StoreLimits(2))
BOUND = 20.0


def run(tmp_path: Path, play: Callable[[RemoteStore, RemoteStore], Awaitable[None]]) -> None:
    """Run a test's coroutine with the stores of two API processes; afterwards the link is closed."""

    async def between() -> None:
        engine = ScriptedEngine.__new__(ScriptedEngine)
        async with asyncio.timeout(BOUND):
            async with EngineServer(engine, Path("/m"), CONFIG).listening(tmp_path / "socket"):
                remotes = [(await connect(tmp_path / "socket"))[0] for _ in range(2)]
                listening = [asyncio.create_task(remote.listen()) for remote in remotes]
                first, second = map(RemoteStore, remotes)
                await play(first, second)
            await asyncio.gather(*listening)
            with pytest.raises(EngineUnavailableError):
                await first.get("", "a")

    asyncio.run(between())


def stored(name: str, previous: str = "", data: bytes = b"x", owner: str = "k") -> StoredResponse:
    return StoredResponse(name, owner, previous, data)


def test_a_response_is_found_by_another_process(tmp_path):
    async def play(first: RemoteStore, second: RemoteStore) -> None:
        assert await first.put(stored("a", data=b"1"))
        assert await second.put(stored("b", "a", data=b"2"))
        assert await second.get("k", "a") == b"1"
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
        assert [await second.get("k", name) for name in "abc"] == [None, b"x", b"x"]

    run(tmp_path, play)


def test_large_responses_pass_the_link_one_by_one(tmp_path):
    async def play(first: RemoteStore, second: RemoteStore) -> None:
        large = bytes(MAX_RESPONSE_BYTES)
        assert (
            await asyncio.gather(*(first.put(stored(f"{number}", data=large)) for number in range(20))) == [True] * 20
        )
        assert await second.get("k", "19") == large
        assert not await first.put(stored("a", data=large + b"x"))

    run(tmp_path, play)


def test_errors_of_the_master_are_raised(tmp_path, monkeypatch):
    monkeypatch.setattr(response_store, "MAX_CONVERSATION_BYTES", 3)

    async def play(first: RemoteStore, second: RemoteStore) -> None:
        await first.put(stored("a", data=b"12"))
        await first.put(stored("b", "a", data=b"34"))
        with pytest.raises(RequestError, match="previous_response_id: the conversation has more than") as refused:
            await second.conversation("k", "b")
        assert refused.value.field == "previous_response_id"

    run(tmp_path, play)
