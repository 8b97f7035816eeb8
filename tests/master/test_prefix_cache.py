"""PrefixCache: contents of blocks by key, their order of eviction, and the keys of a request's blocks."""

from __future__ import annotations

import pytest
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
    assert block_keys(request, 1) is block_keys(request, 3)
    assert request.block_keys == keys(range(48))


def test_a_block_keeps_its_content_while_nobody_holds_it():
    cache, (key,) = PrefixCache(), keys(range(16))
    assert cache.find(key) is None
    cache.put(key, 4)
    assert not cache.is_unused(4)
    assert cache.retire(4)
    assert cache.is_unused(4)
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
