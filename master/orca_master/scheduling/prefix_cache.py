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
from collections import OrderedDict
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

    @property
    def num_unused(self) -> int:
        """Number of blocks with a content that no request holds."""
        return len(self._unused)

    def find(self, key: bytes) -> int | None:
        """Return the block with the content of this key, None if there is none."""
        return self._blocks.get(key)

    def is_unused(self, block: int) -> bool:
        """Return True if no request holds this block and it has a content."""
        return block in self._unused

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
        self.use.num_evictions += 1
        return block


def block_keys(request: Request, count: int) -> list[bytes]:
    """Return the keys of at least the first `count` blocks of a request, whose tokens must be known.

    Always the same list, `Request.block_keys`, which later calls extend.
    """
    keys = request.block_keys
    while len(keys) < count:
        first = f"{request.adapter} {request.cache_salt}".encode()
        parent = keys[-1] if keys else hashlib.blake2b(first, digest_size=KEY_BYTES).digest()
        tokens = array("I", request.tokens(len(keys) * BLOCK_SIZE, BLOCK_SIZE))
        keys.append(hashlib.blake2b(parent + tokens.tobytes(), digest_size=KEY_BYTES).digest())
    return keys
