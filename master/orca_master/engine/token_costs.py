"""`TokenCosts`: how many seconds of a pipeline a token takes while requests wait. Pure; it has no clock.

A token of a prompt is much cheaper than a generated one, which shares its iteration with few others. One rate for both
would depend on their mixture, and the mixture is unusual at the begin of an overload: first prompts, then only answers.
The cost of a prompt's token is the slope of the iterations' times over their tokens of prompts, by least squares over
all iterations. The rest of the time of the iterations for which requests had to wait, divided by their generated
tokens, is the cost of a generated token: only these iterations have a full batch. One that was full of tokens of
prompts counts as if it had one, which the next iterations will have. Those that have only embeddings count for nothing
in it. The costs also say how many tokens of prompts an iteration can have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from orca_master.engine.moving_line import MovingLine
from orca_master.scheduling.prompt_budget import PromptBudget

WINDOW_SECONDS = 5.0
"""The weight of an iteration decreases by the factor e in so much time of iterations."""
LEAST_ITERATIONS = 16
"""Slow iterations: the weight decreases by the factor e in so many of them."""
PART = 8
"""Most tokens of prompts, in those that take as long as an iteration without prompts, which then is a ninth of both."""

ENOUGH = 2
"""The same of prompts behind which no further one begins (PromptBudget.enough); measured, benchmarks/options.md."""


class Costs(NamedTuple):
    """Seconds of a pipeline per token of a prompt, and per generated token."""

    prompt: float
    generated: float


@dataclass(slots=True)
class _Sums:
    """Sums over iterations, whose weights decrease."""

    seconds: float = 0.0
    prompt: float = 0.0
    generated: float = 0.0
    places: float = 0.0
    """Tokens that full batches would have generated."""

    @property
    def equal_cost(self) -> float | None:
        """Seconds per token of either kind; None without tokens."""
        tokens = self.prompt + self.generated
        return self.seconds / tokens if tokens else None

    def note(self, seconds: float, prompt: int, generated: int, places: int, kept: float) -> None:
        """Add an iteration; the weights of all earlier ones are multiplied by `kept`."""
        self.seconds = kept * self.seconds + seconds
        self.prompt = kept * self.prompt + prompt
        self.generated = kept * self.generated + generated
        self.places = kept * self.places + places


class TokenCosts:
    """Moving averages over iterations. Idle time is no iteration, and so without effect."""

    def __init__(self) -> None:
        self._line = MovingLine()
        """Seconds over tokens of prompts, of all iterations."""
        self._slope: float | None = None
        """The last known slope of the line, because equal iterations have none."""
        self._plain: float | None = None
        """Seconds of an iteration without prompts; the line's constant would have the error of an old slope."""
        self._limited = _Sums()
        """Of the iterations for which requests had to wait."""
        self._answering = _Sums()
        """Of those of them in which not all requests were embeddings."""
        self._generated_cost: float | None = None
        """After the last one of these: later ones, whose prompts may cost another time, say nothing about it."""

    def note(
        self, seconds: float, prompt: int, generated: int, limited: bool, answers: bool = True, places: int = 0
    ) -> None:
        """Add an iteration that took its pipeline `seconds`, with so many tokens of prompts and of answers.

        `limited`: requests had to wait, because they did not fit into the iteration; `answers`: not all requests of the
        iteration are embeddings; `places`: tokens that a full batch generates, if the iteration had free places.
        """
        kept = max(math.exp(-seconds / WINDOW_SECONDS), 1 - 1 / LEAST_ITERATIONS)
        self._line.note(prompt, seconds, kept)
        if (slope := self._line.slope()) is not None and slope > 0:
            self._slope = slope
        if not prompt:
            self._plain = seconds if self._plain is None else kept * self._plain + (1 - kept) * seconds
        if limited:
            places = max(generated, places)
            self._limited.note(seconds, prompt, generated, places, kept)
            if answers:
                self._answering.note(seconds, prompt, generated, places, kept)
                self._note_generated_cost()

    @property
    def costs(self) -> Costs | None:
        """The costs; None before the first iteration with tokens for which requests had to wait."""
        equal = self._limited.equal_cost
        if equal is None:
            return None
        if self._generated_cost is None:
            return Costs(equal, equal)
        return Costs(self._prompt_cost(equal), self._generated_cost)

    def _prompt_cost(self, most: float) -> float:
        """Return the cost of a prompt's token, from 0 to `most`; `most` if it cannot be estimated."""
        slope = self._line.slope()
        return most if slope is None else min(most, max(0.0, slope))

    def _note_generated_cost(self) -> None:
        sums, equal = self._answering, self._answering.equal_cost
        if sums.generated and equal is not None:
            rest = sums.seconds - self._prompt_cost(equal) * sums.prompt
            self._generated_cost = max(0.0, rest) / sums.places

    def even_prompt_budget(self, batch_size: int) -> PromptBudget | None:
        """Return how many tokens of prompts iterations have if they all take equally long; None before costs are known.

        Beside answers as many as requests have lately had per generated token, for the `batch_size` tokens of a full
        batch: fewer would leave the batch with free places, more would leave other iterations without a prompt. At
        least as many as take the time of an iteration without prompts, at most PART times as many, as without answers.
        Unlimited beside answers until requests had to wait.
        """
        answering = self._answering
        if self._slope is None or self._plain is None:
            return None
        least = self._plain / self._slope
        alone = math.ceil(PART * least)
        if not answering.generated:
            return PromptBudget(alone=alone)
        needed = batch_size * answering.prompt / answering.generated
        return PromptBudget(math.ceil(max(least, min(PART * least, needed))), alone)

    def iteration_seconds(self, plain: float, prompt: int) -> float:
        """Return the expected seconds of an iteration with so many tokens of prompts, 0 if their cost is not known.

        `plain`: seconds of an iteration without them.
        """
        if prompt and self._slope is None:
            return 0.0
        return plain + prompt * (self._slope or 0.0)

    def enough_prompt_tokens(self) -> int | None:
        """Return the tokens of prompts that take ENOUGH times as long as an iteration without; None if not known."""
        if self._slope is None or self._plain is None:
            return None
        return math.ceil(ENOUGH * self._plain / self._slope)

    def prompt_tokens_within(self, seconds: float) -> int | None:
        """Return how many tokens of prompts an iteration of `seconds` has; None if their cost cannot be estimated.

        At least as many as take the time of an iteration without prompts: where that exceeds `seconds`, prompts have
        half of the pipeline's time.
        """
        slope = self._line.slope()
        if slope is None or slope <= 0:
            return None
        constant = self._line.constant(slope)
        return math.floor(max(seconds - constant, constant) / slope)
