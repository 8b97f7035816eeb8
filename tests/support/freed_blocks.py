"""The blocks that a ledger frees when some requests are released, by their definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.request import Request


def blocks_freed_by(ledger: KvLedger, requests: Collection[Request]) -> set[int]:
    """Return the blocks that only these requests hold."""
    held = Counter(block for request in requests for block in ledger.holding(request).blocks)
    return {block for block, count in held.items() if count == ledger._num_holders[block]}
