"""Sums of activations for embeddings: after the final norm, of the input tokens that an iteration names.

The endpoint adds the sums of a prompt's chunks and scales the vector to length 1, so that a rank keeps no state for
them (`Iteration.pooled` in protos/engine.proto).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from orca_protos import engine_pb2 as pb

from orca_worker.device_copies import HostCopies

SLICE_ELEMENTS = 2**22
"""Most activations that are normalised and widened at a time: 16 MiB of float32."""


def start_pooling(
    norm: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    rows: Sequence[slice],
    iteration: pb.Iteration,
    copies: HostCopies,
) -> Callable[[pb.IterationResult], None]:
    """Sum the normalised `rows` of `hidden` [count, H] in float32; return a function that waits and writes the sums.

    `rows`: those of each entry of `Iteration.pooled`. `norm`: the model's final norm.
    """
    size = max(1, SLICE_ELEMENTS // hidden.shape[1])
    sums = torch.zeros((len(rows), hidden.shape[1]), device=hidden.device)
    for index, part in enumerate(rows):
        for start in range(part.start, part.stop, size):
            sums[index] += norm(hidden[start : min(start + size, part.stop)]).float().sum(dim=0)
    on_host = copies.start(sums)

    def write(result: pb.IterationResult) -> None:
        (found,) = on_host()
        for entry, total in zip(iteration.pooled, found.numpy().astype("<f4"), strict=True):
            result.pooled.add(index=entry.index, sum=total.tobytes())

    return write
