"""`Backlog`: the work that comes before the first iteration of a new request. Pure.

Waiting requests whose blocks and places in a batch are free begin with the next iterations: only their known tokens
delay a new request. The others begin when earlier requests end, so their answers delay it, too.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from orca_master.scheduling.answers_left import AnswersLeft
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.request import Request, ServiceClass
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.spare_iteration import num_places


@dataclass(frozen=True, slots=True)
class Backlog:
    """Tokens ahead of a new request."""

    known: int = 0
    """Known tokens of the waiting requests ahead: their prompts, without what a prefix cache had at their arrival, and
    what they had generated before a rewind."""
    left: tuple[tuple[int, int], ...] = ()
    """Groups of the requests ahead without those that can begin at once: their number, and the sum of the tokens that
    they may generate (answers_left.py)."""
    running: tuple[tuple[int, int], ...] = ()
    """If some requests cannot begin at once: generated tokens and `max_gen_tokens` of each request that can, and of
    each that holds slots, also of those of batches: their end frees slots, too."""


def backlog(scheduler: Scheduler, request: Request | None = None) -> Backlog:
    """Return the work ahead of a new interactive `request`, None for one behind all others that are interactive.

    Costs O(requests that can begin at once + requests that hold slots); for a request that is more urgent than others,
    O(requests ahead).
    """
    pool = scheduler.pool
    if request is None or pool.is_last(request):
        num_ahead, known, left = pool.num_interactive, pool.num_known_tokens, pool.left
    else:
        ahead = list(itertools.takewhile(lambda entry: pool.order(entry) < pool.order(request), pool))
        num_ahead = len(ahead)
        known, left = sum(entry.num_expected for entry in ahead), AnswersLeft(ahead)
    beginning = _beginning(scheduler, num_ahead)
    if len(beginning) == num_ahead:
        return Backlog(known)
    running = [*scheduler.admitted, *beginning]
    return Backlog(
        known, left.without(beginning), tuple((len(entry.generated), entry.max_gen_tokens) for entry in running)
    )


def leaves_behind(scheduler: Scheduler, batch: Batch) -> bool:
    """Return True if the first waiting request did not fit into `batch`, the last that was dispatched.

    False if the request fits into the next batch, because a stage is idle.
    """
    return is_crowded(scheduler) or (batch.is_full and len(scheduler.pool) > 0)


def is_crowded(scheduler: Scheduler) -> bool:
    """Return True if the first waiting request begins when another request ends: no place or too few blocks are free.

    Otherwise it begins with one of the next iterations, however full of tokens these are.
    """
    head = next(iter(scheduler.pool), None)
    if head is None:
        return False
    return _free_places(scheduler, head.service_class) <= 0 or all(
        ledger.blocks_to_admit(head) > ledger.num_free_blocks for ledger in scheduler.ledgers
    )


def _beginning(scheduler: Scheduler, num_ahead: int) -> list[Request]:
    """Return the first of the waiting requests, at most `num_ahead`, for which blocks and places are free.

    Without a pipeline only places are counted: those of one pipeline.
    """
    ledgers = scheduler.ledgers
    free_blocks = sum(ledger.num_free_blocks for ledger in ledgers)
    beginning = []
    num_places = _free_places(scheduler, ServiceClass.INTERACTIVE)
    for request in itertools.islice(scheduler.pool, max(0, min(num_ahead, num_places))):
        if ledgers:
            free_blocks -= ledgers[0].blocks_of(request)  # shared blocks are not looked up: this runs at each arrival
        if free_blocks < 0:
            break
        beginning.append(request)
    return beginning


def _free_places(scheduler: Scheduler, service_class: ServiceClass) -> int:
    """Return how many more requests of this class can run at the same time; negative if some pause for others.

    A running request of a later class pauses for them, so that it takes no place.
    """
    pool, admitted = scheduler.pool, scheduler.admitted_by_pipeline or [()]
    num_running = sum(request.service_class <= service_class for request in scheduler.admitted)
    num_interactive = sum(request.service_class is ServiceClass.INTERACTIVE for request in scheduler.admitted)
    if service_class is ServiceClass.INTERACTIVE:
        num_more = pool.num_interactive
    else:  # requests of batches begin in no spare iteration beside interactive ones
        num_more = 0 if pool.num_interactive + num_interactive else len(pool)
    return num_places(scheduler.config, admitted, num_running, num_more) - num_running
