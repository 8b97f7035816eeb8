"""One iteration ahead: the batch that follows one in flight, before that one's tokens are known.

For a pipeline of one partition, where Algorithm 1 lets the workers wait between a result and the next batch. The
worker itself feeds each token that it samples (orca_protos.wire.PENDING_TOKEN). A request that turns out to have ended
is noticed one iteration late: its result is stale then, and what it wrote lies in blocks that the next holder writes
before it reads, because a worker computes iterations in their order.
"""

from __future__ import annotations

from orca_master.scheduling.batch import Batch, Proposal, Selection
from orca_master.scheduling.scheduler import Scheduler


def look_ahead(scheduler: Scheduler, batch: Batch) -> Proposal:
    """Proposes the increments after `batch`, the newest in flight of its pipeline; changes nothing.

    Nothing is proposed where Algorithm 1 might choose differently once the result is known, other than for an end of
    sequence: a request may join or is not in the batch, a prompt is not through, blocks are lacking.
    """
    ledger, config = scheduler.ledger(batch.pipeline), scheduler.config
    alive = [scheduled for scheduled in batch.requests if scheduled.incarnation == scheduled.request.incarnation]
    if len(alive) < ledger.num_holders or not all(scheduled.samples for scheduled in alive):
        return Proposal()
    requests = [scheduled.request for scheduled in alive]
    staying = [request for request in requests if request.num_left > 1]
    free_blocks = ledger.num_free_blocks - sum(
        ledger.blocks_to_grow(request, request.num_scheduled + 1) for request in staying
    )
    if free_blocks < 0 or (config.token_budget is not None and len(staying) > config.token_budget):
        return Proposal()
    head = next(iter(scheduler.pool), None)
    if head is not None:
        leaves_room = len(staying) < config.max_batch_size and ledger.blocks_to_admit(head) <= free_blocks
        order = scheduler.pool.order
        goes_first = bool(staying) and order(head) < order(staying[-1])
        goes_first = goes_first and ledger.blocks_to_admit(head) <= ledger.num_free_blocks
        if leaves_room or goes_first or len(staying) < len(requests):
            return Proposal()
    return Proposal(tuple(Selection(request, 1) for request in staying))
