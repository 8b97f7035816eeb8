"""`Head`: what the last partition computes from the output of its layers: prompts' results, sampled and drafted tokens.

Every rank of the partition computes it, because each has a part of the logits; rank 0 samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from orca_protos import engine_pb2 as pb

from orca_worker.device_clock import DeviceClock
from orca_worker.device_copies import HostCopies
from orca_worker.draft_model import DraftModel
from orca_worker.loaded_partition import LoadedPartition
from orca_worker.prompt_results import start_prompt_results
from orca_worker.rows import IterationBatch, RowTable
from orca_worker.sampler import Sampled
from orca_worker.token_masks import TokenMasks

Write = Callable[[pb.IterationResult], None]
"""Waits for a part of a result and writes it."""


class Head:
    """The head of one epoch, over the `table` of its rows; `draft_model`: None if tokens are not drafted here."""

    def __init__(
        self,
        loaded: LoadedPartition,
        table: RowTable,
        masks: TokenMasks,
        copies: HostCopies,
        clock: DeviceClock,
        draft_model: DraftModel | None,
    ) -> None:
        self._loaded = loaded
        self._table = table
        self._masks = masks
        self._copies = copies
        self._clock = clock
        self._draft_model = draft_model
        self._sampler = loaded.sampler()
        self._samples = loaded.group.rank == 0  # only rank 0 has all columns of the logits
        if draft_model is not None:
            draft_model.reset()

    def batch(self, iteration: pb.Iteration) -> IterationBatch:
        """Return the batch of an iteration, with what the sampler needs of it."""
        if not self._samples:
            return self._table.batch(iteration)
        batch = self._table.batch(iteration, self._sampler.parameters)
        self._sampler.observe(iteration, batch)
        return batch

    def read(self, output: torch.Tensor, iteration: pb.Iteration, batch: IterationBatch) -> Iterator[Write]:
        """Start what follows from the layers' `output` [rows, H]; yield functions that wait and write it to a result.

        The rows are those of LastTokens, or of all tokens.
        """
        model = self._loaded.model
        if batch.prompt is not None:
            copies, size = self._copies if self._samples else None, self._loaded.config.vocabulary_size
            yield from start_prompt_results(model, output, batch.prompt, iteration, size, copies)
            output = output[batch.prompt.sampling]
        tokens = torch.zeros_like(batch.rows)  # what ranks without all columns add to rank 0's
        if len(batch.rows):
            sampled = self._sample(output, iteration, batch)
            if sampled is not None:
                on_host, tokens = self._copies.start(*sampled.results), sampled.tokens
                yield lambda result: sampled.write(on_host(), result)
            if model.spec.first or self._draft_model is not None:
                tokens = self._loaded.group.from_first(tokens)
            if model.spec.first:  # the next iteration may have been sent already, without these tokens
                self._table.keep_sampled(batch, tokens)
        if self._draft_model is not None:
            self._draft_model.note(iteration, tokens)
            if iteration.num_drafts:
                yield self._draft_model.draft(iteration, self._table, self._sampler, self._clock)

    def _sample(self, output: torch.Tensor, iteration: pb.Iteration, batch: IterationBatch) -> Sampled | None:
        """Sample a token for each row of the layers' `output` [K, H]; return None if another rank samples."""
        model = self._loaded.model
        if self._samples and not iteration.masked_row and self._sampler.takes_likeliest(iteration, batch):
            tokens = model.likeliest(output)
            if tokens is not None:
                return Sampled.of_tokens(tokens)
        logits = model.logits(output)
        if not self._samples:
            return None
        self._masks.apply(logits, iteration)
        return self._sampler.sample(logits, iteration, batch)
