"""`LogitProcessors`: changes to the logits before sampling: penalties, logit bias, tokens banned before min_tokens.

Few requests need them, so state is kept for the rows of those only; the logits of other rows are not copied.
Order and formulas are the usual ones: repetition penalty (Keskar et al., 2019, on prompt and output), then OpenAI's
frequency and presence penalties (on the output), then the bias, then the ban.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from orca_kernels.device_copies import to_device
from orca_protos import engine_pb2 as pb


@dataclass(slots=True)
class _Row:
    sampling: pb.Sampling
    prompt_length: int
    generated: torch.Tensor
    """[vocabulary] float32 counts of generated tokens."""
    num_generated: int
    seen: torch.Tensor
    """Tokens int64 of prompt and output in its first `num_seen` places, with repetitions."""
    num_seen: int
    penalties: torch.Tensor
    """[3] float32: repetition, frequency, presence."""
    bias: tuple[torch.Tensor, torch.Tensor]
    """[biased tokens] int64 and float32."""
    banned: torch.Tensor
    """[banned tokens] int64."""

    def add_seen(self, tokens: torch.Tensor) -> None:
        """Add tokens of the prompt or the output to `seen`, whose size doubles."""
        total = self.num_seen + len(tokens)
        if total > len(self.seen):
            grown = torch.empty(2 * total, dtype=torch.int64, device=tokens.device)
            grown[: self.num_seen] = self.seen[: self.num_seen]
            self.seen = grown
        self.seen[self.num_seen : total] = tokens
        self.num_seen = total


class LogitProcessors:
    """State of the rows that need processing. Call `observe` with every iteration in order."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._device = device
        self._rows: dict[int, _Row] = {}

    def observe(self, iteration: pb.Iteration, input_tokens: torch.Tensor) -> None:
        """Record the admissions of an iteration and its input tokens [S]."""
        for admission in iteration.admission:
            self._rows.pop(admission.row, None)
            if needs_processing(admission):
                self._rows[admission.row] = self._begin(admission)
                self._note(self._rows[admission.row], self._tokens(admission.computed_token), 0)
        if not self._rows:
            return
        start = 0
        for row, count, context in zip(iteration.row, iteration.num_tokens, iteration.context_length, strict=True):
            state = self._rows.get(row)
            if state is not None:
                self._note(state, input_tokens[start : start + count], context)
            start += count

    def apply(self, logits: torch.Tensor, iteration: pb.Iteration) -> torch.Tensor:
        """Return processed logits [K, vocabulary] of the K requests that sample; the input is not changed."""
        places = self.places(iteration)
        if not places:
            return logits
        processed = logits.clone()
        for place, row in places.items():
            _process(processed[place], self._rows[row])
        return processed

    def places(self, iteration: pb.Iteration) -> dict[int, int]:
        """Return the rows that need processing, by their places among the rows that sample."""
        if not self._rows:
            return {}
        sampling = [row for row, samples in zip(iteration.row, iteration.sample, strict=True) if samples]
        return {place: row for place, row in enumerate(sampling) if row in self._rows}

    def _note(self, state: _Row, tokens: torch.Tensor, position: int) -> None:
        """Note tokens of a row from `position` on."""
        of_prompt = max(0, min(len(tokens), state.prompt_length - position))
        generated = tokens[of_prompt:]
        state.num_generated += len(generated)
        state.generated.index_add_(0, generated, torch.ones(len(generated), device=self._device))
        state.add_seen(tokens)

    def _tokens(self, values: Iterable[int]) -> torch.Tensor:
        return to_device(self._device, np.fromiter(values, np.int64))[0]

    def _begin(self, admission: pb.Admission) -> _Row:
        sampling = admission.sampling
        tokens, values = list(sampling.logit_bias.token), list(sampling.logit_bias.value)
        penalties = [sampling.repetition_penalty or 1.0, sampling.frequency_penalty, sampling.presence_penalty]
        biases, penalty = to_device(self._device, np.array(values, np.float32), np.array(penalties, np.float32))
        return _Row(
            sampling,
            admission.prompt_length,
            torch.zeros(self._vocabulary, device=self._device),
            0,
            self._tokens(()),
            0,
            penalty,
            (self._tokens(tokens), biases),
            self._tokens(admission.banned_token),
        )


def _process(logits: torch.Tensor, row: _Row) -> None:
    """Change the logits [vocabulary] of a row in place: only those of tokens in its text, biased or banned ones."""
    seen = row.seen[: row.num_seen]
    repetition, frequency, presence = row.penalties
    values, generated = logits[seen], row.generated[seen]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values = values - generated * frequency
    # Repeated tokens have equal values.
    logits[seen] = values - (generated > 0) * presence
    tokens, biases = row.bias
    logits[tokens] += biases
    if len(row.banned) and row.num_generated < row.sampling.min_tokens:
        logits[row.banned] = -torch.inf


def needs_processing(admission: pb.Admission) -> bool:
    """Return True if a row's logits are changed before sampling."""
    sampling = admission.sampling
    return bool(
        sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty not in (0.0, 1.0)
        or sampling.logit_bias.token
        or (sampling.min_tokens and admission.banned_token)
    )
