"""`DraftCosts`: what drafted tokens cost, and how likely one must be accepted to pay. Pure.

Times are in parts of the time that an iteration without rows would take. Of `rows` rows each takes the part
`row` / (1 + `row` x `rows`) of the iteration, and an iteration generates `rows` tokens. A step of the draft model
drafts a token for each of the rows. The draft model is a smaller model of the same kind, so a step takes the same part
`step` of an iteration with any number of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from orca_contract.drafting import MOST_CAUGHT_UP

ROW_COST = STEP_COST = 0.1
"""Before they have been measured."""
LEAST_ACCEPTANCE = 0.25
"""Where rows are nearly free: guesses that are seldom right would be computed for nothing."""


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """What drafts cost.

    `row`: the time of a row. `step`: that of a step of the draft model, in parts of an iteration of as many rows.
    `caught_up`: the time of a token that the draft model computes without drafting behind it. `look_ahead`: the time
    that an iteration takes longer if it cannot be sent ahead (lookahead.py), as with drafts; 0 without look-ahead.
    """

    row: float = ROW_COST
    step: float = STEP_COST
    caught_up: float = ROW_COST * STEP_COST
    look_ahead: float = 0.0

    def least_acceptance(self, rows: int) -> float:
        """Return the probability of acceptance from which on a drafted token pays beside `rows` others."""
        return max(LEAST_ACCEPTANCE, self.row * rows / self.iteration_time(rows))

    def least_acceptance_of_step(self, rows: int) -> float:
        """Return the probability of acceptance from which on a step pays that drafts a token for each of `rows`.

        Above 1 where none pays.
        """
        return max(LEAST_ACCEPTANCE, self.row * rows / self.iteration_time(rows) + self.step)

    def iteration_time(self, rows: int) -> float:
        """Return the time of an iteration of `rows` rows."""
        return 1 + self.row * rows

    def drafting_time(self, count: int, rows: int) -> float:
        """Return the time for `count` drafted tokens of each of `rows`, with that of look-ahead, which they exclude."""
        return count * self.step * self.iteration_time(rows) + self.look_ahead

    def probe_price(self, num_behind: int, rows: int) -> float:
        """Return how many tokens could be generated beside `rows` rows in the time of drafting and computing one token.

        `num_behind`: tokens that the draft model must catch up on. Not sent ahead are the iterations at whose ends it
        catches up and drafts, the one that computes the token, and the one after that.
        """
        num_late = iterations_behind(num_behind) + 2
        time = num_behind * self.caught_up + self.step * self.iteration_time(1) + self.row + num_late * self.look_ahead
        return time * rows / self.iteration_time(rows)

    def gain(self, count: int, acceptance: float, rows: int) -> tuple[float, float]:
        """Return the accepted tokens of a draft of `count` tokens of one of `rows` rows, and the time that it saves.

        The time of the draft model's steps and of look-ahead is not subtracted.
        """
        accepted = sum(acceptance**number for number in range(1, count + 1))
        return accepted, accepted * self.iteration_time(rows) / rows - count * self.row


def iterations_behind(num_behind: int) -> int:
    """Return the iterations at whose ends the draft model catches up on `num_behind` tokens, if on no other rows."""
    return math.ceil(num_behind / MOST_CAUGHT_UP)
