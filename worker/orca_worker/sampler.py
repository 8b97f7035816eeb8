"""`Sampler`: from the logits of an iteration to tokens and log probabilities. `TorchSampler` computes them with torch.

A sampler sees every iteration in order, because some parameters depend on the tokens before. Its calls are
`parameters`, `observe`, and, if rows sample, `sample`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from orca_protos import engine_pb2 as pb

from orca_worker.logit_processing import LogitProcessors
from orca_worker.logprobs import logprob_messages, logprob_tensors
from orca_worker.rows import IterationBatch
from orca_worker.sampling import SamplingRows, sample


@dataclass(frozen=True, slots=True)
class Sampled:
    """The outcome of one iteration."""

    tokens: torch.Tensor
    """[K] int64 on the device."""
    results: Sequence[torch.Tensor]
    """What `write` needs on the host."""
    write: Callable[[Sequence[torch.Tensor], pb.IterationResult], None]
    """Writes tokens and log probabilities to a result, from copies of `results` on the host."""

    @classmethod
    def of_tokens(cls, tokens: torch.Tensor) -> Sampled:
        """Return the outcome of tokens [K] int64 without log probabilities."""
        return cls(tokens, [tokens], lambda on_host, result: result.token.extend(on_host[0].tolist()))


class Sampler(Protocol):
    """Samples the tokens of all rows."""

    def parameters(self, iteration: pb.Iteration, rows: SamplingRows) -> Sequence[np.ndarray]:
        """Return int64 arrays that this iteration needs on the device: RowTable.batch copies them with its own."""

    def observe(self, iteration: pb.Iteration, batch: IterationBatch) -> None:
        """Record the admissions of an iteration and its input tokens."""

    def takes_likeliest(self, iteration: pb.Iteration, batch: IterationBatch) -> bool:
        """Return True if `sample` would take the token with the largest logit of every row, and nothing beside.

        Masks are not considered.
        """

    def sample(self, logits: torch.Tensor, iteration: pb.Iteration, batch: IterationBatch) -> Sampled:
        """Sample a token for each row of `logits` float32 [K, vocabulary], K > 0."""


class TorchSampler:
    """Implements `Sampler` on any device. On CUDA it waits for the device with top-k, top-p and min-p."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self._processors = LogitProcessors(vocabulary, device)

    def parameters(self, iteration: pb.Iteration, rows: SamplingRows) -> Sequence[np.ndarray]:
        """See Sampler."""
        return ()

    def observe(self, iteration: pb.Iteration, batch: IterationBatch) -> None:
        """See Sampler."""
        self._processors.observe(iteration, batch.tokens)

    def takes_likeliest(self, iteration: pb.Iteration, batch: IterationBatch) -> bool:
        """See Sampler."""
        rows = batch.sampling
        is_greedy = not (rows.temperature > 0).any() and not (rows.logprobs >= 0).any()
        return is_greedy and not self._processors.places(iteration)

    def sample(self, logits: torch.Tensor, iteration: pb.Iteration, batch: IterationBatch) -> Sampled:
        """See Sampler."""
        tokens = sample(self._processors.apply(logits, iteration), batch.sampling)

        def write(on_host: Sequence[torch.Tensor], result: pb.IterationResult) -> None:
            sampled, *logprobs = on_host
            result.token.extend(sampled.tolist())
            result.logprobs.extend(logprob_messages(logprobs, batch.sampling))

        return Sampled(tokens, [tokens, *logprob_tensors(logits, tokens, batch.sampling)], write)
