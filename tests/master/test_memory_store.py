"""Background responses in the store: their states, their events, and the room that they have."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.endpoint import memory_store
from orca_master.endpoint.memory_store import MemoryStore
from orca_master.endpoint.response_shelves import ENTRY_BYTES, EVENT_BYTES
from orca_master.endpoint.response_store import (
    ENDING_BYTES,
    MAX_RESPONSE_BYTES,
    EventPage,
    FoundResponse,
    Phase,
    StoredResponse,
    StoreLimits,
)
from orca_master.errors import QueueFullError, RequestError

FIRST = (b"created", b"queued")


def play(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 60))


async def begin(
    store: MemoryStore, name: str = "a", owner: str = "k", events: Sequence[bytes] = FIRST, data: bytes = b"begun"
) -> list[str]:
    """Begin a response; return the list to which its name is added when it is stopped."""
    stopped: list[str] = []
    await store.begin(StoredResponse(name, owner, "", data), events, lambda: stopped.append(name))
    return stopped


def test_a_response_is_queued_in_progress_and_ended():
    async def scene() -> None:
        store = MemoryStore(StoreLimits())
        stopped = await begin(store)
        assert await store.get("k", "a") == FoundResponse(b"begun", Phase.QUEUED, 2)
        with pytest.raises(RequestError, match="in progress"):
            await store.conversation("k", "a")
        assert await store.advance("k", "a", [b"1"])
        assert await store.get("k", "a") == FoundResponse(b"begun", Phase.IN_PROGRESS, 3)
        assert await store.end("k", "a", b"ended", [b"last"])
        assert await store.get("k", "a") == FoundResponse(b"ended", Phase.ENDED, 4)
        assert await store.conversation("k", "a") == [b"ended"]
        assert store.shelves.num_bytes == 5 + ENTRY_BYTES + sum(map(len, (*FIRST, b"1last"))) + 4 * EVENT_BYTES
        assert await store.advance("k", "a", [b"late"])
        assert await store.end("k", "a", b"late", [])
        await store.cancel("k", "a")
        assert await store.get("k", "a") == FoundResponse(b"ended", Phase.ENDED, 4)
        assert stopped == []

    play(scene)


@pytest.mark.parametrize("ending", ["cancel", "delete", "lose", "begin"])
def test_another_than_the_runner_ends_a_response(ending):
    async def scene() -> None:
        store = MemoryStore(StoreLimits())
        stopped = await begin(store)
        reader = asyncio.create_task(store.events("k", "a", 1))
        await asyncio.sleep(0)
        if ending == "cancel":
            await store.cancel("k", "a")
            await store.cancel("k", "a")
        elif ending == "delete":
            await store.cancel("other", "a")
            assert not await store.delete("other", "a")
            assert await store.delete("k", "a")
        elif ending == "lose":
            store.lose("k", "a")
        else:
            await begin(store, events=[b"0", b"1", b"2"])
        assert stopped == ([] if ending == "lose" else ["a"])
        expected = {
            "cancel": EventPage([], 2, Phase.CANCELLED),
            "delete": None,
            "lose": EventPage([], 2, Phase.LOST),
            "begin": EventPage([b"2"], 3, Phase.QUEUED),
        }
        assert await reader == expected[ending]
        assert await store.advance("k", "a", []), "a runner that has not stopped yet is not told about it"

    play(scene)


def test_readers_wait_and_get_every_event_once():
    async def scene() -> None:
        store = MemoryStore(StoreLimits())
        await begin(store)

        async def read(after: int) -> list[bytes]:
            events: list[bytes] = []
            while (page := await store.events("k", "a", after)) is not None and page.events:
                events += page.events
                after += len(page.events)
            return events

        readers = [asyncio.create_task(read(after)) for after in (-1, 0, 1, 4, 9, 50)]
        for number in range(2, 10):
            await asyncio.sleep(0)
            assert await store.advance("k", "a", [b"%d" % number])
        assert await store.end("k", "a", b"ended", [b"last"])
        every = [*FIRST, *(b"%d" % number for number in range(2, 10)), b"last"]
        assert await asyncio.gather(*readers) == [every[after + 1 :] for after in (-1, 0, 1, 4, 9, 50)]

    play(scene)


def test_a_reader_that_leaves_is_forgotten():
    async def scene() -> None:
        store = MemoryStore(StoreLimits())
        await begin(store)
        readers = [asyncio.create_task(store.events("k", "a", 1)) for _ in range(20)]
        await asyncio.sleep(0)
        kept = store.shelves.running("k", "a")
        assert kept is not None
        assert len(kept.watchers) == 20
        for reader in readers:
            reader.cancel()
        await store.advance("k", "a", [b"1"])  # before the readers notice
        await asyncio.gather(*readers, return_exceptions=True)
        assert kept.watchers == set()

    play(scene)


def test_a_page_is_bounded(monkeypatch):
    monkeypatch.setattr(memory_store, "PAGE_BYTES", 10)

    async def scene() -> None:
        store = MemoryStore(StoreLimits())
        await begin(store, events=[b"a" * 20, b"b" * 5, b"c" * 5, b"d"])
        pages = []
        for after in (-1, 0, 2):
            page = await store.events("k", "a", after)
            assert page is not None
            pages.append([bytes(event[:1]) for event in page.events])
        assert pages == [[b"a"], [b"b", b"c"], [b"d"]]

    play(scene)


def test_running_responses_are_not_replaced():
    async def scene() -> None:
        store = MemoryStore(StoreLimits(count=4))
        await begin(store)
        for name in "bcdef":
            assert await store.put(StoredResponse(name, "k", "", b"x"))
        assert [name for name in "abcdef" if await store.get("k", name)] == ["a", "d", "e", "f"]
        await begin(store, "g")
        with pytest.raises(QueueFullError, match="wait until one has ended"):
            await begin(store, "h")
        await begin(store, "h", owner="other")
        with pytest.raises(QueueFullError):
            await begin(store, "i", owner="third")
        await store.cancel("k", "a")
        await begin(store, "i", owner="third")
        assert store.shelves.count == 4
        small = MemoryStore(StoreLimits(count=1))
        await begin(small)
        assert not await small.put(StoredResponse("b", "k", "", b"x")), "there is no room beside a running response"

    play(scene)


def test_too_large_responses_are_refused():
    async def scene() -> None:
        store = MemoryStore(StoreLimits())
        for data, events in ((b"x" * (MAX_RESPONSE_BYTES + 1), []), (b"", [b"x" * (MAX_RESPONSE_BYTES + 1)])):
            with pytest.raises(RequestError, match="MiB of a stored response") as refused:
                await begin(store, data=data, events=events)
            assert refused.value.field == "background"
        with pytest.raises(RequestError, match="--max-stored-response-bytes"):
            await begin(MemoryStore(StoreLimits(num_bytes=2 * ENTRY_BYTES)))
        await begin(store)
        assert not await store.advance("k", "a", [b"x" * MAX_RESPONSE_BYTES, b"x"])
        assert not await store.end("k", "a", b"x" * (MAX_RESPONSE_BYTES + 1), [])
        assert await store.get("k", "a") == FoundResponse(b"begun", Phase.QUEUED, 2)

    play(scene)


def test_the_largest_response_can_end_with_an_error():
    async def scene() -> None:
        store = MemoryStore(StoreLimits())
        most = MAX_RESPONSE_BYTES - ENDING_BYTES
        with pytest.raises(RequestError, match="MiB of a stored response"):
            await begin(store, data=b"x" * (most + 1))
        await begin(store, data=b"x" * most)
        assert await store.end("k", "a", b"x" * MAX_RESPONSE_BYTES, [b"x" * MAX_RESPONSE_BYTES])

    play(scene)


def test_running_responses_do_not_expire():
    async def scene() -> None:
        time = 0.0
        store = MemoryStore(StoreLimits(seconds=10), lambda: time)
        await begin(store)
        time = 20.0
        assert await store.get("k", "a") is not None
        await store.end("k", "a", b"ended", [])
        time = 29.0
        assert await store.get("k", "a") is not None, "the age counts from the end"
        time = 40.0
        assert await store.get("k", "a") is None

    play(scene)


steps = st.tuples(st.sampled_from("kl"), st.sampled_from("abcdef"), st.integers(0, 7), st.integers(0, 9000))


@given(st.lists(steps))
def test_the_limits_hold_and_every_response_can_end(steps):
    limits = StoreLimits(count=5, num_bytes=60_000)

    async def scene() -> None:
        store = MemoryStore(limits)
        failed: dict[tuple[str, str], tuple[bytes, list[bytes]]] = {}
        for owner, name, action, size in steps:
            data = b"x" * size
            if action == 0:
                await store.put(StoredResponse(name, owner, "", data))
            elif action in (1, 2):
                events = [data] if action == 2 else []
                try:
                    await begin(store, name, owner, events, data)
                except (QueueFullError, RequestError):
                    continue
                # A response without output: a bit more than at its beginning.
                more = b"y" * ENDING_BYTES
                failed[owner, name] = data + more, [data + more[EVENT_BYTES:]] if events else []
            elif action == 3:
                await store.advance(owner, name, [data])
            elif action == 4:
                await store.end(owner, name, data, [])
            elif action == 5:
                await store.cancel(owner, name)
            elif action == 6:
                await store.delete(owner, name)
            elif (owner, name) in failed:
                assert await store.end(owner, name, *failed[owner, name])
            shelves = store.shelves
            assert shelves.count <= limits.count
            assert shelves.num_bytes <= limits.num_bytes
            assert all(shelf.responses or shelf.running for shelf in shelves.by_owner.values())
            kept = [
                kept.num_bytes
                for shelf in shelves.by_owner.values()
                for kept in (*shelf.responses.values(), *shelf.running.values())
            ]
            assert (len(kept), sum(kept)) == (shelves.count, shelves.num_bytes)
            for shelf in shelves.by_owner.values():
                assert shelf.running_bytes <= limits.num_bytes // 2
                assert shelf.running_bytes == sum(entry.num_bytes for entry in shelf.running.values())
                assert shelf.num_bytes == sum(entry.num_bytes for entry in shelf.responses.values())

    play(scene)
