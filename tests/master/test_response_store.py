"""Stored responses: owners, conversations, and the limits of number, memory and age."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.endpoint import memory_store
from orca_master.endpoint.memory_store import MemoryStore
from orca_master.endpoint.response_shelves import ENTRY_BYTES
from orca_master.endpoint.response_store import MAX_RESPONSE_BYTES, FoundResponse, Phase, StoredResponse, StoreLimits
from orca_master.errors import RequestError

T = TypeVar("T")


def now(answer: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(answer)


def put(store: MemoryStore, name: str, owner: str = "k", previous: str = "", size: int = 1) -> bool:
    return now(store.put(StoredResponse(name, owner, previous, name.encode() * size)))


def data_of(store: MemoryStore, owner: str, name: str) -> bytes | None:
    found = now(store.get(owner, name))
    assert found is None or found == FoundResponse(found.data, Phase.STORED, 0)
    return None if found is None else found.data


def names(store: MemoryStore, owner: str = "k") -> str:
    """Names of the stored responses, without a use of them."""
    shelf = store.shelves.by_owner.get(owner)
    return "" if shelf is None else "".join(shelf.responses)


def test_a_response_belongs_to_its_owner():
    store = MemoryStore(StoreLimits())
    put(store, "a")
    assert data_of(store, "k", "a") == b"a"
    assert data_of(store, "other", "a") is None
    assert now(store.conversation("other", "a")) == []
    assert not now(store.delete("other", "a"))
    assert now(store.delete("k", "a"))
    assert not now(store.delete("k", "a"))
    assert data_of(store, "k", "a") is None
    assert (store.shelves.count, store.shelves.num_bytes) == (0, 0)


def test_a_conversation_is_all_responses_in_turn():
    store = MemoryStore(StoreLimits())
    for name, previous in ("a", ""), ("b", "a"), ("c", "b"), ("d", "b"):
        put(store, name, previous=previous)
    assert now(store.conversation("k", "c")) == [b"a", b"b", b"c"]
    assert now(store.conversation("k", "d")) == [b"a", b"b", b"d"]
    now(store.delete("k", "b"))
    assert now(store.conversation("k", "c")) == []
    assert data_of(store, "k", "c") == b"c"


def test_responses_that_continue_each_other_in_a_circle_end():
    store = MemoryStore(StoreLimits())
    put(store, "a", previous="b")
    put(store, "b", previous="a")
    assert now(store.conversation("k", "a")) == []


def test_the_least_recently_used_response_makes_room():
    store = MemoryStore(StoreLimits(count=3))
    for name in "abc":
        put(store, name)
    now(store.get("k", "a"))
    put(store, "d")
    assert names(store) == "cad"
    assert now(store.conversation("k", "c")) == [b"c"]
    put(store, "e", previous="c")
    assert names(store) == "dce"
    now(store.conversation("k", "e"))
    assert names(store) == "dec"


def test_a_client_cannot_push_out_the_responses_of_others():
    store = MemoryStore(StoreLimits(count=4))
    put(store, "a", owner="one")
    for name in "bcdefg":
        put(store, name, owner="many")
    assert (names(store, "one"), names(store, "many")) == ("a", "efg")
    bounded = MemoryStore(StoreLimits(num_bytes=4 * ENTRY_BYTES + 10))
    for name in "abc":
        put(bounded, name, owner="one")
    put(bounded, "d", owner="large", size=2 * ENTRY_BYTES)
    assert (names(bounded, "one"), names(bounded, "large")) == ("c", "d")


def test_memory_is_limited():
    store = MemoryStore(StoreLimits(num_bytes=3 * (ENTRY_BYTES + 1)))
    for name in "abcd":
        put(store, name)
    assert names(store) == "bcd"
    assert not put(store, "e", size=2 * ENTRY_BYTES + 4)
    assert names(store) == "bcd", "a response that can never fit removes none"
    large = MemoryStore(StoreLimits())
    assert put(large, "a", size=MAX_RESPONSE_BYTES)
    assert not put(large, "b", size=MAX_RESPONSE_BYTES + 1)


def test_age_counts_from_the_last_use():
    time = 0.0
    store = MemoryStore(StoreLimits(seconds=10), lambda: time)
    put(store, "a")
    put(store, "b")
    time = 6.0
    now(store.get("k", "a"))
    time = 11.0
    assert data_of(store, "k", "b") is None
    assert data_of(store, "k", "a") == b"a"
    time = 22.0
    put(store, "c", owner="other")
    assert (names(store), store.shelves.count) == ("", 1), "responses of all owners expire"


def test_an_id_is_stored_once():
    store = MemoryStore(StoreLimits())
    put(store, "a")
    put(store, "a", size=3)
    assert (data_of(store, "k", "a"), store.shelves.count, store.shelves.num_bytes) == (b"aaa", 1, ENTRY_BYTES + 3)


def test_without_a_number_nothing_is_stored():
    store = MemoryStore(StoreLimits(count=0))
    assert not put(store, "a")
    assert data_of(store, "k", "a") is None


def test_a_conversation_is_limited(monkeypatch):
    monkeypatch.setattr(memory_store, "MAX_CONVERSATION_BYTES", 3)
    store = MemoryStore(StoreLimits())
    put(store, "a", size=2)
    put(store, "b", previous="a", size=2)
    with pytest.raises(RequestError, match="the conversation has more than"):
        now(store.conversation("k", "b"))


@given(st.lists(st.tuples(st.sampled_from("kl"), st.sampled_from("abcdef"), st.integers(0, 3), st.integers(0, 5000))))
def test_the_limits_hold_whatever_happens(steps):
    limits = StoreLimits(count=3, num_bytes=3 * ENTRY_BYTES + 4000, seconds=50)
    time = 0.0
    store = MemoryStore(limits, lambda: time)
    for owner, name, action, size in steps:
        time += size / 1000
        if action < 2:
            put(store, name, owner, size=size)
        elif action == 2:
            now(store.get(owner, name))
        else:
            now(store.delete(owner, name))
        kept = [entry.stored for shelf in store.shelves.by_owner.values() for entry in shelf.responses.values()]
        assert len(kept) == store.shelves.count <= limits.count
        assert sum(len(entry.data) + ENTRY_BYTES for entry in kept) == store.shelves.num_bytes <= limits.num_bytes
        assert all(shelf.responses for shelf in store.shelves.by_owner.values())
