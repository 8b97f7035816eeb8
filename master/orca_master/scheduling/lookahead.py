"""Look-ahead scheduling: choose the next batch while the previous batch is in flight.

Used for pipelines of one partition, whose workers would otherwise be idle between a result and the next batch. The
worker itself inserts the token that it has just sampled (orca_protos.wire.PENDING_TOKEN). The end of a request is
noticed one iteration late: the result of that iteration is stale. Its K/V writes are harmless, because workers compute
iterations in order and the next holder of a block writes each slot before it reads the slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orca_master.scheduling.batch import Batch, Proposal, Selection
from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.request import Request, ServiceClass
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.speculation import drafts_pay, num_wanted, room_for_drafts


def look_ahead(scheduler: Scheduler, batch: Batch) -> Proposal:
    """Propose the decode batch after `batch`, the newest in-flight batch of its pipeline; change nothing.

    The proposal is empty if the result of `batch` could make Algorithm 1 choose differently (an end of sequence
    aside): a waiting request may join or preempt, an admitted request is not in `batch`, a prompt is incomplete, too
    few blocks are free, or the batch exceeds a limit. Also if `batch` has drafts or brings drafts, or its result is
    expected to be drafted on.
    """
    ledger, config = scheduler.ledger(batch.pipeline), scheduler.config
    alive = [scheduled for scheduled in batch.requests if scheduled.incarnation == scheduled.request.incarnation]
    if len(alive) < ledger.num_holders or not all(scheduled.samples for scheduled in alive):
        return Proposal()
    requests = [scheduled.request for scheduled in alive]
    staying = [request for request in requests if request.num_left > 1]
    if any(scheduled.draft or scheduled.num_drafts for scheduled in alive) or _drafts_on(scheduler, staying):
        return Proposal()
    free_blocks = ledger.num_free_blocks - sum(
        ledger.blocks_to_grow(request, request.num_scheduled + 1) for request in staying
    )
    # The limits may have become smaller while `batch` was in flight.
    if free_blocks < 0 or len(staying) > config.batch_size:
        return Proposal()
    head = _first_admissible(scheduler.pool, ledger)
    if head is not None:
        leaves_room = len(staying) < config.max_batch_size and ledger.blocks_to_admit(head) <= free_blocks
        order = scheduler.pool.order
        goes_first = bool(staying) and order(head) < max(map(order, staying))  # the policy may have changed
        goes_first = goes_first and ledger.blocks_to_admit(head) <= ledger.num_free_blocks
        for_batch = any(entry.service_class > head.service_class for entry in staying)  # these may be preempted
        if leaves_room or goes_first or for_batch or len(staying) < len(requests):
            return Proposal()
    return Proposal(tuple(Selection(request, 1) for request in staying))


def _first_admissible(waiting: Iterable[Request], ledger: KvLedger) -> Request | None:
    """Return the first waiting request that has a turn here: others wait for a larger pipeline (candidates.py)."""
    last_class = ServiceClass.BATCH
    for request in waiting:
        if request.service_class > last_class:
            return None
        if ledger.can_finish(request):
            return request
        last_class = request.service_class
    return None


def _drafts_on(scheduler: Scheduler, staying: Sequence[Request]) -> bool:
    """Return True if one of these requests, the next batch, would be drafted on if its token in flight were known."""
    config, rows = scheduler.config, len(staying)
    budget = None if config.token_budget is None else config.token_budget - rows
    room, costs = room_for_drafts(rows, budget), scheduler.draft_costs
    most = min(config.speculative_tokens, room)
    return most > 0 and (
        drafts_pay([(request, min(most, request.num_left - 2)) for request in staying], room, rows, costs)
        or any(num_wanted(request, 1, most, rows, costs) for request in staying)
    )
