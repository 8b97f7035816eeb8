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
    in_prompt: torch.Tensor
    """[vocabulary] bool."""
    generated: torch.Tensor
    """[vocabulary] float32 counts of generated tokens."""
    num_generated: int
    bias: torch.Tensor | None
    """[vocabulary] float32."""
    banned: torch.Tensor
    """[banned tokens] int64."""


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
        sampling = [row for row, samples in zip(iteration.row, iteration.sample, strict=True) if samples]
        places = [place for place, row in enumerate(sampling) if row in self._rows]
        if not places:
            return logits
        rows = [self._rows[sampling[place]] for place in places]
        chosen = self._tokens(places)
        processed = logits.clone()
        processed[chosen] = self._process(logits[chosen], rows)
        for place, row in zip(places, rows, strict=True):
            if len(row.banned) and row.num_generated < row.sampling.min_tokens:
                processed[place, row.banned] = -torch.inf
        return processed

    def _note(self, state: _Row, tokens: torch.Tensor, position: int) -> None:
        """Note tokens of a row from `position` on."""
        of_prompt = max(0, min(len(tokens), state.prompt_length - position))
        state.in_prompt[tokens[:of_prompt]] = True
        generated = tokens[of_prompt:]
        state.num_generated += len(generated)
        state.generated.index_add_(0, generated, torch.ones(len(generated), device=self._device))

    def _process(self, logits: torch.Tensor, rows: list[_Row]) -> torch.Tensor:
        generated = torch.stack([row.generated for row in rows])
        seen = torch.stack([row.in_prompt for row in rows]) | (generated > 0)
        repetition = self._column([row.sampling.repetition_penalty or 1.0 for row in rows])
        logits = torch.where(seen, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
        logits = logits - generated * self._column([row.sampling.frequency_penalty for row in rows])
        logits = logits - (generated > 0) * self._column([row.sampling.presence_penalty for row in rows])
        for place, row in enumerate(rows):
            if row.bias is not None:
                logits[place] += row.bias
        return logits

    def _column(self, values: list[float]) -> torch.Tensor:
        return to_device(self._device, np.array(values, np.float32))[0].unsqueeze(1)

    def _tokens(self, values: Iterable[int]) -> torch.Tensor:
        return to_device(self._device, np.fromiter(values, np.int64))[0]

    def _begin(self, admission: pb.Admission) -> _Row:
        sampling = admission.sampling
        bias = None
        if sampling.logit_bias.token:
            biases = np.zeros(self._vocabulary, np.float32)
            biases[list(sampling.logit_bias.token)] = list(sampling.logit_bias.value)
            (bias,) = to_device(self._device, biases)
        return _Row(
            sampling,
            admission.prompt_length,
            torch.zeros(self._vocabulary, dtype=torch.bool, device=self._device),
            torch.zeros(self._vocabulary, device=self._device),
            0,
            bias,
            self._tokens(admission.banned_token),
        )


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
