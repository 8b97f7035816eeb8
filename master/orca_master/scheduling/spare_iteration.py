"""The spare iteration: with several stages one more iteration is in flight, so that no stage waits for a message. Pure.

With one iteration per stage, a stage that becomes free waits until the result of another one has reached the master and
the next iteration the stage. The spare iteration is there already. A stage takes nearly as long for a few tokens as for
many, so requests begin in it only as a full batch, or, where full batches are in all stages, with as many tokens of
prompts as it may have. Then they go on: batches are divided by one more iteration until so many requests have ended
that one per stage suffices.

Requests that would pause for more urgent ones (classes, policies) begin nothing in it: it would take time from those.
They only fill places that these leave.
"""

from __future__ import annotations

from collections.abc import Sequence

from orca_master.scheduling.batch import Proposal
from orca_master.scheduling.request import Request
from orca_master.scheduling.scheduler_config import SchedulerConfig


def num_batches(config: SchedulerConfig, admitted: Sequence[Request]) -> int:
    """Return how many iterations have the requests of a pipeline: one per stage, or one more to let all go on."""
    urgent = min((request.service_class for request in admitted), default=None)
    num_urgent = sum(request.service_class == urgent for request in admitted)
    return config.most_in_flight if num_urgent > config.batch_size * config.n_workers else config.n_workers


def may_be_spare(config: SchedulerConfig, proposal: Proposal, admitted: Sequence[Request]) -> bool:
    """Return True if a proposal is worth an iteration beside one per stage."""
    requests = [selection.request for selection in proposal.selections]
    urgent = min((request.service_class for request in (*admitted, *requests)), default=None)
    no_token_fits = proposal.is_full and len(admitted) >= config.batch_size * config.n_workers
    is_full = len(requests) == config.batch_size or no_token_fits
    return is_full and all(request.service_class == urgent for request in requests)


def num_places(config: SchedulerConfig, admitted: Sequence[Sequence[Request]], num_present: int) -> int:
    """Return how many requests run at the same time on pipelines with these `admitted` requests.

    `num_present`: how many run or wait, 0 if none that waits may begin in a spare iteration.
    """
    batches = [num_batches(config, requests) for requests in admitted]
    places = config.batch_size * sum(batches)
    unused = config.batch_size * (config.most_in_flight * len(batches) - sum(batches))
    waiting = max(0, num_present - places) // config.batch_size * config.batch_size  # without a rest: no full batch
    return places + min(unused, waiting)
