"""`batch_cap`: how many requests a batch has, so that all stages of a pipeline are busy. Pure."""

from __future__ import annotations

from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.room import Room


def batch_cap(
    max_batch_size: int, num_batches: int, pool: RequestPool, ledger: KvLedger, num_admitted: int, num_pipelines: int
) -> int:
    """Return `max_batch_size`, or less if smaller batches keep every stage busy.

    Live requests are the admitted requests of this pipeline and its proportion of the requests that could be
    admitted now, counted only as far as they can change the result.
    """
    if num_batches == num_pipelines == 1:
        return max_batch_size
    enough = (max_batch_size * num_batches - num_admitted) * num_pipelines
    room, admissible = Room.of(ledger), 0
    for request in pool if enough > 0 else ():
        if not ledger.can_finish(request):
            continue
        cost = room.cost_of(request)
        if cost.num_blocks > room.num_blocks or admissible == enough:
            break
        room.admit(cost)
        admissible += 1
    live = num_admitted + -(-admissible // num_pipelines)
    return min(max_batch_size, -(-live // num_batches))
