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
from orca_master.scheduling.request import Request, ServiceClass
from orca_master.scheduling.scheduler_config import SchedulerConfig


def num_batches(config: SchedulerConfig, admitted: Sequence[Request]) -> int:
    """Return into how many iterations requests are divided: one per stage, or one more, so that all go on."""
    if not config.keeps_spare_iteration:
        return config.n_workers
    urgent = _most_urgent(admitted)
    num_urgent = sum(request.service_class == urgent for request in admitted)
    return config.most_in_flight if num_urgent > config.num_places else config.n_workers


def may_be_spare(config: SchedulerConfig, proposal: Proposal, admitted: Sequence[Request]) -> bool:
    """Return True if a proposal is worth an iteration beside one per stage."""
    selected = [selection.request for selection in proposal.selections]
    urgent = _most_urgent([*admitted, *selected])
    num_urgent = sum(request.service_class == urgent for request in admitted)
    no_token_fits = proposal.is_full and num_urgent >= config.num_places
    is_full = len(selected) == config.batch_size or no_token_fits
    return is_full and all(request.service_class == urgent for request in selected)


def num_places(config: SchedulerConfig, admitted: Sequence[Sequence[Request]], num_running: int, num_more: int) -> int:
    """Return how many requests run at the same time on pipelines with these `admitted` requests.

    `num_running` of them are of the class that is asked about; `num_more` wait and may begin in a spare iteration.
    """
    batches = [num_batches(config, requests) for requests in admitted]
    num_spare = config.most_in_flight * len(batches) - sum(batches)  # iterations that nobody has begun in
    places = config.batch_size * sum(batches)
    num_full = max(0, num_running + num_more - places) // config.batch_size
    return places + config.batch_size * min(num_spare, num_full)


def _most_urgent(requests: Sequence[Request]) -> ServiceClass | None:
    return min((request.service_class for request in requests), default=None)
