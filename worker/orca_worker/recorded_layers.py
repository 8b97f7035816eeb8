"""`RecordedLayers`: the layers of a loaded partition, whose decode iterations are recorded and replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.interface import RaggedBatch

from orca_worker.adapters import IterationAdapters
from orca_worker.decode_graphs import DecodeGraphs, PaddingRows
from orca_worker.layers import PagedAttention
from orca_worker.loaded_partition import LoadedPartition
from orca_worker.rows import IterationBatch, LastTokens, RowTable
from orca_worker.warm_up import warm_up_iterations


class RecordedLayers:
    """The layers of `loaded`, over the pools of its attentions. Recordings refer to the pools and the process group."""

    def __init__(self, loaded: LoadedPartition) -> None:
        self._loaded = loaded
        self._graphs: DecodeGraphs | None = None

    @property
    def attentions(self) -> list[PagedAttention]:
        """The attentions of the layers, in order; each needs pools."""
        return self._loaded.model.attentions()

    @property
    def refusal(self) -> str:
        """Why decode iterations could not be recorded and run eagerly; empty if they are recorded, or need not be."""
        return "" if self._graphs is None else self._graphs.refusal

    def drop_recordings(self) -> None:
        """Drop all recordings, and make no more."""
        self._graphs = None

    def begin_recordings(self, num_blocks: int) -> None:
        """Record decode iterations from now on, over pools of `num_blocks` blocks and one more for padding rows."""
        if (recorder := self._loaded.recorder()) is not None:
            padding = PaddingRows(num_blocks, -(-self._loaded.max_model_len // BLOCK_SIZE))
            records_adapters = self._loaded.model.adapted_maps.recordable
            self._graphs = DecodeGraphs(self._forward, padding, self._loaded.device, *recorder, records_adapters)

    def forget_adapters(self) -> None:
        """Drop the recordings of rows with adapters, because an adapter comes or goes."""
        if self._graphs is not None:
            self._graphs.forget_adapters()

    @torch.inference_mode()
    def record_all(self) -> None:
        """Record every size at once, without other partitions."""
        if self._graphs is not None:
            self._graphs.record_all(self._loaded.no_activations(1))

    def run(self, batch: IterationBatch, hidden: torch.Tensor | None) -> torch.Tensor:
        """Embed the tokens on the first partition, where `hidden` [S, H] is None, then run the layers.

        Returns hidden [S, H], or [K, H] for the rows that the head reads: see ModelPartition.__call__.
        """
        if not self._loaded.model.adapted_maps.has_maps:  # those of the batch change other partitions
            batch = replace(batch, adapters=None)
        if self._graphs is not None and self._graphs.accepts(batch):
            return self._graphs.run(batch, hidden)
        last = batch.last if self._loaded.model.spec.last else None
        return self._forward(batch.tokens, batch.ragged, hidden, batch.adapters, last)

    def run_partition(self, batch: IterationBatch, hidden: torch.Tensor | None) -> torch.Tensor:
        """Run the layers, and on the last partition the head: activations, or logits."""
        output = self.run(batch, hidden)
        return self._loaded.model.logits(output) if self._loaded.model.spec.last else output

    @torch.inference_mode()
    def run_largest(self, max_tokens: int, grow: Callable[[int], None], on_cpu: bool) -> None:
        """Run the iterations that take the most memory, without other partitions.

        `grow` makes pools of a number of blocks at least; `max_tokens` and `on_cpu`: see warm_up.py.
        """
        loaded = self._loaded
        for iteration in warm_up_iterations(max_tokens, loaded.max_model_len, on_cpu):
            grow(max(iteration.new_block) + 1)
            sampler = loaded.sampler()
            batch = RowTable(loaded.max_model_len, loaded.device).batch(iteration, sampler.parameters)
            logits = self.run_partition(batch, loaded.no_activations(len(batch.tokens)))
            if loaded.model.spec.last and loaded.group.rank == 0:  # only rank 0 has all columns
                sampler.observe(iteration, batch)
                sampler.sample(logits, iteration, batch)

    def _forward(
        self,
        tokens: torch.Tensor,
        ragged: RaggedBatch,
        hidden: torch.Tensor | None,
        adapters: IterationAdapters | None,
        last: LastTokens | None = None,
    ) -> torch.Tensor:
        model = self._loaded.model
        model.adapters.select(adapters)
        return model(model.embed(tokens, ragged) if hidden is None else hidden, ragged, last)
