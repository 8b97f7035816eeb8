"""PrefixCache: contents of blocks by key, their order of eviction, and the keys of a request's blocks."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_master.scheduling.prefix_cache import PrefixCache, block_keys
from orca_master.scheduling.request import Request


def keys(tokens: range | tuple[int, ...], salt: str = "") -> list[bytes]:
    request = Request("r", 0, tuple(tokens), 1, cache_salt=salt)
    return block_keys(request, len(tokens) // BLOCK_SIZE)


def test_a_key_depends_on_all_tokens_before_it_and_on_the_salt():
    first = keys(range(48))
    assert len(set(first)) == 3
    assert keys(range(40)) == first[:2]
    other = keys((1, *range(1, 48)))
    assert not set(other) & set(first), "the later blocks have the same tokens"
    assert not set(keys(range(48), "other")) & set(first)


def test_keys_reach_into_the_generated_tokens_and_are_computed_once():
    request = Request("r", 0, tuple(range(20)), 30, generated=list(range(20, 50)))
    first = block_keys(request, 1)[0]
    assert block_keys(request, 2) is block_keys(request, 3)
    assert block_keys(request, 1)[0] is first
    assert request.block_keys == keys(range(48))


def test_choices_share_the_keys_of_their_prompt_but_not_those_of_their_tokens():
    """Two requests with one list, a prompt of a block and a half, and different tokens after it."""
    shared: list[bytes] = []
    answers = [list(range(24, 56)), list(range(124, 156))]
    requests = [Request("r", 0, tuple(range(24)), 40, generated=entry, block_keys=shared) for entry in answers]
    assert all(block_keys(entry, 1) is shared for entry in requests)
    for _ in range(2):
        assert [block_keys(entry, 3) for entry in requests] == [keys((*range(24), *entry))[:3] for entry in answers]
    assert shared == keys(range(16))
    assert block_keys(Request("r", 0, tuple(range(32)), 1, block_keys=shared), 2) == keys(range(32))


def test_a_block_keeps_its_content_while_nobody_holds_it():
    cache, (key,) = PrefixCache(), keys(range(16))
    assert cache.find(key) is None
    cache.put(key, 4)
    assert not cache.unused_among([4])
    assert cache.retire(4)
    assert cache.unused_among([4, 5]) == {4}
    assert cache.find(key) == 4
    cache.hold(4)
    assert cache.num_unused == 0
    assert not cache.retire(5), "a block without a content"


def test_eviction_begins_with_the_block_that_was_used_longest_ago():
    cache, contents = PrefixCache(), keys(range(48))
    for block, key in enumerate(contents):
        cache.put(key, block)
        cache.retire(block)
    cache.hold(0)
    cache.retire(0)
    assert [cache.evict(), cache.evict(), cache.evict()] == [1, 2, 0]
    assert cache.use.num_evictions == 3
    assert [cache.find(key) for key in contents] == [None, None, None]
    with pytest.raises(StopIteration):
        cache.evict()


def test_a_second_block_of_the_same_content_takes_the_place_of_an_unused_one_only():
    cache, (key,) = PrefixCache(), keys(range(16))
    cache.put(key, 1)
    assert cache.put(key, 2) is None, "block 1 is held"
    assert cache.find(key) == 1
    assert not cache.retire(2), "and block 2 has no content to keep"
    cache.retire(1)
    assert cache.put(key, 3) == 1
    assert cache.find(key) == 3
    assert cache.num_unused == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["find", "put"]), st.lists(st.integers(0, 1), max_size=5), st.integers(0, 6)),
            st.tuples(st.sampled_from(["evict", "retire"]), st.just([]), st.integers(0, 6)),
        ),
        max_size=40,
    )
)
@example([("put", [0], 0), ("find", [0], 1), ("retire", [], 0), ("evict", [], 0), ("find", [0], 1)])
@example([("put", [0], 0), ("find", [0], 1), ("retire", [], 0), ("put", [0], 0), ("find", [0], 1)])
def test_a_prefix_is_found_as_by_a_walk_over_all_of_its_keys(steps):
    """Whatever was found before, put and evicted since. Each block of a request has one token 16 times."""
    cache, next_block, requests = PrefixCache(), 0, dict[tuple[int, ...], Request]()
    for kind, contents, number in steps:
        tokens = tuple(token for token in contents for _ in range(BLOCK_SIZE))
        if kind == "find":
            found = []
            for key in keys(tokens)[:number]:
                if (block := cache.find(key)) is None:
                    break
                found.append(block)
            request = requests.setdefault(tokens, Request("r", 0, (*tokens, 9), 1))
            assert cache.find_prefix(request, min(number, len(contents))) == found
        elif kind == "put":
            for key in keys(tokens):
                cache.put(key, next_block)
                next_block += 1
        elif kind == "retire" and number in cache._keys:
            cache.retire(number)
        elif kind == "evict" and cache.num_unused:
            cache.evict()


class CountingCache(PrefixCache):
    """Counts the keys that are looked up."""

    num_found = 0

    def find(self, key: bytes) -> int | None:
        self.num_found += 1
        return super().find(key)


def test_requests_that_wait_with_the_same_prefix_walk_it_once():
    """Eight requests with a document of 20 blocks and different questions ask twice; later ones go on behind it."""
    cache, document = CountingCache(), tuple(range(320))
    for block, key in enumerate(keys(document)):
        cache.put(key, block)
    requests = [Request("r", 0, (*document, *[number] * 40), 1) for number in range(8)]
    for entry in requests:
        block_keys(entry, 22)
    for _ in range(2):
        assert all(cache.find_prefix(entry, 22) == list(range(20)) for entry in requests)
    assert cache.num_found == 20 + 16
    cache.put(block_keys(requests[3], 21)[20], 20)
    assert [len(cache.find_prefix(entry, 22)) for entry in requests] == [20, 20, 20, 21, 20, 20, 20, 20]
    assert cache.num_found == 20 + 16 + 9
