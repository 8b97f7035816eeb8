"""`ModelPartition`: what every family's partition looks like to the stage that runs it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from orca_kernels.interface import Kernels, RaggedBatch
from torch import nn

from orca_worker.intra_layer import IntraLayer
from orca_worker.layers import Attention
from orca_worker.rows import LastTokens


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of a model is built, and what with."""

    partition: int
    num_partitions: int
    max_model_len: int
    kernels: Kernels
    device: torch.device
    ranks: IntraLayer

    @property
    def first(self) -> bool:
        """It has the embedding."""
        return self.partition == 0

    @property
    def last(self) -> bool:
        """It has the head."""
        return self.partition == self.num_partitions - 1


class ModelPartition(nn.Module):
    """Consecutive layers, with the embedding on the first partition and the head on the last."""

    def attentions(self) -> list[Attention]:
        """The attention of each layer held, in order: each needs pools."""
        return [module for module in self.modules() if isinstance(module, Attention)]

    def embed(self, tokens: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """Returns [S, H] for token ids [S]. First partition only."""
        raise NotImplementedError

    def forward(self, hidden: torch.Tensor, batch: RaggedBatch, last: LastTokens | None) -> torch.Tensor:
        """Runs the layers held over hidden [S, H] and returns [S, H]; with `last`, only those rows [K, H].

        The rest of the last layer is then left out for the others: nobody reads what it makes of them.
        """
        raise NotImplementedError

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns float32 logits for hidden [rows, H] of the rows that sample. Last partition only.

        [rows, vocabulary] on rank 0, some of the columns on the others.
        """
        raise NotImplementedError
