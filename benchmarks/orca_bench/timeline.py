"""What a stage waits for between two iterations, from the iteration log of a live engine. Pure.

A stage is idle between the end of an iteration and the start of the next one. First it waits for another stage: a
later stage for the stage before, which still computes that iteration; the first stage for the last one, because the
engine sends an iteration only after the result of the iteration P before it (the paper, section 4.3: at most P are in
flight). Then it waits for the message: activations from stage to stage, or the result to the master, its decision and
the iteration to the first stage. Stages of one machine share a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Span = tuple[float, float]
"""Start and end of an iteration on a stage, in seconds."""


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds of one stage between the start of the first iteration and the end of the last one."""

    busy: float = 0.0
    other_stage: float = 0.0
    """Another stage computes."""
    message: float = 0.0
    """No stage computes what this stage needs: a message is under way, or the master decides."""

    @property
    def bubble(self) -> float:
        """Proportion of the time in which the stage is idle."""
        return 1 - self.busy / (self.busy + self.other_stage + self.message)


def stage_times(iterations: Sequence[Sequence[Span]]) -> list[StageTime]:
    """Return the times of each stage; `iterations` has the spans of the stages in the order of execution."""
    return [_of_stage(iterations, stage) for stage in range(len(iterations[0]))]


def _of_stage(iterations: Sequence[Sequence[Span]], stage: int) -> StageTime:
    num_stages = len(iterations[0])
    busy, other, message = iterations[0][stage][1] - iterations[0][stage][0], 0.0, 0.0
    for number, (before, spans) in enumerate(pairwise(iterations), start=1):
        (start, end), free = spans[stage], before[stage][1]
        if stage:
            needed = spans[stage - 1][1]
        else:
            needed = iterations[number - num_stages][-1][1] if number >= num_stages else free
        idle = max(0.0, start - free)
        waited = min(idle, max(0.0, needed - free))
        busy, other, message = busy + end - start, other + waited, message + idle - waited
    return StageTime(busy, other, message)
