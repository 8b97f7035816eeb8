"""`TokenMasks`: the masks of iterations whose next tokens a grammar limits, and their application to logits.

The master sends a mask after its iteration, because the mask depends on the token before, which a worker samples in the
iteration before. The layers are computed meanwhile; only sampling waits. The rank's reader thread keeps the masks, its
main thread takes them, in the order of the iterations.
"""

from __future__ import annotations

import functools
import threading

import numpy as np
import torch
from orca_kernels.device_copies import to_device
from orca_protos import engine_pb2 as pb

from orca_worker.errors import NeighbourError, RankError

WORD_BYTES = 4
"""A mask has a multiple of this number of bytes."""


class TokenMasks:
    """Masks of one epoch that came before they were needed, by sequence number. `end` frees a waiting thread.

    `samples`: whether this rank samples; others drop the masks.
    """

    def __init__(self, samples: bool) -> None:
        self._samples = samples
        self._arrived: dict[int, bytes] = {}
        self._changed = threading.Condition()
        self._over = False

    def keep(self, message: pb.Iteration) -> bool:
        """Keep the masks of a message for `take`; return False for a message without masks, an iteration."""
        if message.HasField("masks") and self._samples:
            with self._changed:
                self._arrived[message.sequence] = message.masks.allowed
                self._changed.notify_all()
        return message.HasField("masks")

    def apply(self, logits: torch.Tensor, iteration: pb.Iteration) -> None:
        """Wait for the masks of an iteration, if it has any, and apply them to its logits (`apply_masks`)."""
        if iteration.masked_row:
            apply_masks(logits, masked_places(iteration), self.take(iteration.sequence))

    def end(self) -> None:
        """End the epoch: no more masks come."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def take(self, sequence: int) -> bytes:
        """Wait for the masks of an iteration; raise NeighbourError if the epoch ends before they come.

        There is no timeout: the controller ends a rank whose master is lost, by the `prepare` of the next epoch.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._over or sequence in self._arrived)
            if sequence not in self._arrived:
                raise NeighbourError(f"the epoch ended before the masks of iteration {sequence} came")
            return self._arrived.pop(sequence)


def masked_places(iteration: pb.Iteration) -> list[int]:
    """Return the places of the masked rows among the rows that sample."""
    sampling = [row for row, samples in zip(iteration.row, iteration.sample, strict=True) if samples]
    places = {row: place for place, row in enumerate(sampling)}
    return [places[row] for row in iteration.masked_row]


def apply_masks(logits: torch.Tensor, places: list[int], allowed: bytes) -> None:
    """Set the logits of forbidden tokens to -inf, in place.

    `logits` is [K, vocabulary], `places` the rows that `allowed` has masks of (`TokenMasks` in engine.proto). Raises
    RankError for masks of another size. Without a wait for the device: the copies are asynchronous.
    """
    vocabulary = logits.shape[-1]
    width = -(-vocabulary // (8 * WORD_BYTES)) * WORD_BYTES
    if len(allowed) != len(places) * width:
        raise RankError(f"{len(allowed)} bytes of masks for {len(places)} rows of {width} bytes")
    packed, index = to_device(logits.device, np.frombuffer(allowed, np.uint8).astype(np.int32), np.array(places))
    # A table of eight logits for each byte: ten times as fast on a CPU as shifts and `masked_fill`.
    bias = _bias_of_bytes(logits.device).index_select(0, packed).view(len(places), -1)[:, :vocabulary]
    if places == list(range(len(logits))):
        logits.add_(bias)
    else:
        logits.index_add_(0, index, bias)


@functools.cache
def _bias_of_bytes(device: torch.device) -> torch.Tensor:
    """Return what a byte of a mask adds to the logits of its eight tokens, 0 or -inf: float32 [256, 8]."""
    allowed = torch.arange(256).unsqueeze(1) >> torch.arange(8) & 1 == 1
    return torch.zeros(256, 8).masked_fill_(~allowed, -torch.inf).to(device)
