"""`PrefixCache`: which K/V blocks of a pipeline hold which tokens, so that requests with a common prefix share blocks.

Only full blocks are shared. The key of a block is a hash of its tokens and of the key of the block before it, so that
equal keys mean equal tokens from position 0 on. The first key depends on `Request.cache_salt` instead: requests with
different salts share nothing, and a client cannot learn from a response time what another one has sent.

The content of a block is known when the iteration that computes it is dispatched, before it is computed: stages
execute iterations in sequence order, and in each layer they store all keys and values before they read any, so that
requests of one iteration can share blocks, too.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from orca_contract.kv_blocks import BLOCK_SIZE

from orca_master.scheduling.request import Request

KEY_BYTES = 16


@dataclass(slots=True)
class CacheUse:
    """Counts since the last `PrefixCache.collect_use`; all 0 without a prefix cache."""

    num_queried: int = 0
    """Tokens of admitted requests."""
    num_hits: int = 0
    """Those of them that are not computed again."""
    num_evictions: int = 0
    """Blocks that lost their content."""


class PrefixCache:
    """Contents of blocks. A block with a content that no request holds is unused: it is kept until it is evicted."""

    def __init__(self) -> None:
        self.use = CacheUse()
        """Since the last `collect_use`."""
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()  # the first key of a dict costs its deleted keys
        """Least recently used first."""
        self._walk: tuple[list[bytes], list[int]] = ([], [])
        """Keys and blocks of the prefix found last, which requests that wait with it ask for in each selection."""

    @property
    def num_unused(self) -> int:
        """Number of blocks with a content that no request holds."""
        return len(self._unused)

    def find(self, key: bytes) -> int | None:
        """Return the block with the content of this key, None if there is none."""
        return self._blocks.get(key)

    def find_prefix(self, request: Request, most: int) -> list[int]:
        """Return the blocks with the contents of a request's first blocks, at most `most`.

        Keys are computed one by one: only as many as the cache has.
        """
        keys, (known, found) = request.block_keys, self._walk
        # A key depends on those before it: two lists differ from the first different key on.
        num_known = bisect_left(range(min(most, len(keys), len(found))), True, key=lambda i: keys[i] != known[i])
        blocks = found[:num_known]
        while len(blocks) < most:
            keys = block_keys(request, len(blocks) + 1)
            block = self.find(keys[len(blocks)])
            if block is None:
                break
            blocks.append(block)
        if len(blocks) > num_known:
            self._walk = (keys, list(blocks))
        return blocks

    def unused_among(self, blocks: Sequence[int]) -> set[int]:
        """Return those of these blocks, which have a content, that no request holds."""
        return set(filter(self._unused.__contains__, blocks))

    def put(self, key: bytes, block: int) -> int | None:
        """Note the content of a block that a request holds; return the unused block that had the same content.

        That block has no content any more: the free block is the caller's. If another request holds a block of the same
        content, that one stays the block of this content.
        """
        other = self._blocks.get(key)
        if other is not None and other not in self._unused:
            return None
        if other is not None:
            del self._unused[other], self._keys[other]
            self._walk = ([], [])
        self._blocks[key], self._keys[block] = block, key
        return other

    def collect_use(self) -> CacheUse:
        """Return the counts since the last call."""
        use, self.use = self.use, CacheUse()
        return use

    def hold(self, block: int) -> None:
        """Note that a request holds this block."""
        self._unused.pop(block, None)

    def retire(self, block: int) -> bool:
        """Note that no request holds this block any more; return False if it has no content."""
        if block not in self._keys:
            return False
        self._unused[block] = None
        return True

    def evict(self) -> int:
        """Forget the content of the least recently used block, and return the block. Raises StopIteration if none."""
        block = next(iter(self._unused))
        del self._unused[block], self._blocks[self._keys.pop(block)]
        self._walk = ([], [])
        self.use.num_evictions += 1
        return block


def block_keys(request: Request, count: int) -> list[bytes]:
    """Return the keys of at least the first `count` blocks of a request, whose tokens must be known.

    This is the list `Request.block_keys`. Choices of one request share the list as far as their prompt fills blocks.
    """
    keys = request.block_keys
    while len(keys) < count:
        if len(keys) == len(request.prompt) // BLOCK_SIZE:
            keys = request.block_keys = list(keys)
        parent = keys[-1] if keys else _digest(f"{request.adapter} {request.cache_salt}".encode())
        tokens = array("I", request.tokens(len(keys) * BLOCK_SIZE, BLOCK_SIZE))
        keys.append(_digest(parent + tokens.tobytes()))
    return keys


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=KEY_BYTES).digest()
