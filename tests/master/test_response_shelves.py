"""Responses by owner: what is taken out and added is counted, and watchers are called once."""

from __future__ import annotations

from orca_master.endpoint.response_shelves import EVENT_BYTES, Kept, Shelves, size_of
from orca_master.endpoint.response_store import Phase, StoredResponse, StoreLimits


def kept(name: str, phase: Phase = Phase.STORED, owner: str = "k", num_bytes: int = 10) -> Kept:
    return Kept(StoredResponse(name, owner, "", b""), num_bytes, phase)


def shelves(count: int = 10, num_bytes: int = 1000) -> Shelves:
    return Shelves(StoreLimits(count, num_bytes), lambda: 0.0)


def test_a_response_changes_its_phase_and_its_shelf():
    state = shelves()
    entry = kept("a", Phase.QUEUED)
    state.add(entry)
    assert (state.running("k", "a"), state.find("k", "a")) == (entry, entry)
    assert state.by_owner["k"].running_bytes == 10
    state.take(entry)
    assert (state.by_owner, state.count, state.num_bytes) == ({}, 0, 0)
    entry.phase = Phase.ENDED
    state.add(entry)
    assert (state.running("k", "a"), state.find("k", "a")) == (None, entry)
    shelf = state.by_owner["k"]
    assert (shelf.running_bytes, shelf.num_bytes, state.count) == (0, 10, 1)


def test_watchers_are_called_at_the_next_change_alone():
    state = shelves()
    seen: list[str] = []
    entry = kept("a", Phase.QUEUED)
    state.add(entry)
    entry.watchers.add(seen.append)
    state.take(entry)
    assert seen == []
    state.add(entry)
    state.remove("k", "a")
    assert seen == ["a"]


def test_room_is_not_made_where_there_will_be_none():
    state = shelves(count=3, num_bytes=100)
    state.add(kept("a", Phase.IN_PROGRESS, num_bytes=60))
    state.add(kept("b", num_bytes=30))
    assert not state.make_room(0, 41)
    assert not state.make_room(3, 0)
    assert state.count == 2, "nothing is removed in vain"
    assert state.make_room(1, 40)
    assert list(state.by_owner["k"].running) == ["a"]
    assert not state.by_owner["k"].responses


def test_one_owner_runs_half_and_responses_begin_in_three_quarters():
    state = shelves(count=8, num_bytes=800)
    assert state.may_begin("k", 400)
    assert not state.may_begin("k", 401)
    for number in range(4):
        state.add(kept(f"{number}", Phase.QUEUED, num_bytes=90))
    assert not state.may_begin("k", 0), "half of the number"
    assert (state.may_grow("k", 40), state.may_grow("k", 41)) == (True, False)
    assert (state.may_begin("other", 240), state.may_begin("other", 241)) == (True, False)
    assert state.may_grow("other", 400), "what has begun may have the last quarter"
    for number in range(2):
        state.add(kept(f"{number}", Phase.QUEUED, "other"))
    assert not state.may_begin("third", 0), "three quarters of the number"


def test_the_running_responses_of_an_owner_count_when_room_is_made():
    state = shelves(count=5)
    for name, phase, owner in (
        ("a", Phase.STORED, "few"),
        ("b", Phase.STORED, "few"),
        ("c", Phase.QUEUED, "many"),
        ("d", Phase.QUEUED, "many"),
        ("e", Phase.STORED, "many"),
    ):
        state.add(kept(name, phase, owner))
    assert state.make_room(1, 0)
    assert list(state.by_owner["few"].responses) == ["a", "b"]
    assert state.make_room(2, 0)
    assert list(state.by_owner["few"].responses) == ["b"], "only others can be removed"


def test_the_size_of_events():
    assert size_of([]) == 0
    assert size_of([b"abc", b""]) == 3 + 2 * EVENT_BYTES
