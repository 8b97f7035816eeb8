"""`RowTable`: a rank's state per request (K/V blocks and sampling parameters), and the batches built from it.

The master assigns rows and blocks; an admission resets its row. Every rank of every partition processes the same
iterations, and so has the same table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.interface import RaggedBatch
from orca_protos import engine_pb2 as pb
from orca_protos.wire import PENDING_TOKEN

from orca_worker.sampling import SAMPLING_ROW, SamplingRows, sampling_row, sampling_rows

INITIAL_ROWS = 64


@dataclass(frozen=True, slots=True)
class LastTokens:
    """The tokens whose output the head reads, one for each request that samples."""

    tokens: torch.Tensor
    """[K] int64 index among the iteration's tokens."""
    ragged: RaggedBatch
    """Batch of these tokens, but positions and slots of the whole iteration, whose keys and values are all stored."""


@dataclass(frozen=True, slots=True)
class IterationBatch:
    """One iteration as tensors."""

    tokens: torch.Tensor
    """[S] int64 input tokens."""
    ragged: RaggedBatch
    last: LastTokens | None
    """None if all tokens sample, or none does."""
    sampling: SamplingRows
    rows: torch.Tensor
    """[K] int64 rows that sample."""


class RowTable:
    """State of all rows; grows when a higher row number is admitted."""

    def __init__(self, max_model_len: int, device: torch.device) -> None:
        self._device = device
        layout = np.dtype(
            [
                ("blocks", np.int64, (-(-max_model_len // BLOCK_SIZE),)),
                ("num_blocks", np.int64),
                ("sampling", SAMPLING_ROW),
            ]
        )
        self._rows = np.zeros(INITIAL_ROWS, layout)
        self._sampled = torch.zeros(INITIAL_ROWS, dtype=torch.int64, device=device)
        """Each row's last token."""

    def keep_sampled(self, batch: IterationBatch, tokens: torch.Tensor) -> None:
        """Keep the sampled tokens [K] of a batch: a later batch may need them before the master knows them."""
        self._sampled[batch.rows] = tokens

    def batch(self, iteration: pb.Iteration) -> IterationBatch:
        """Apply an iteration's admissions and new blocks; return its batch.

        Each PENDING_TOKEN, which the master did not know yet, is replaced by the last token sampled in its row.
        """
        self._admit(iteration)
        row = np.fromiter(iteration.row, np.int64)
        num_tokens = np.fromiter(iteration.num_tokens, np.int64)
        context = np.fromiter(iteration.context_length, np.int64)
        self._grant(row, iteration)

        end = num_tokens.cumsum()
        start = end - num_tokens
        request = np.repeat(np.arange(len(row)), num_tokens)
        position = np.arange(end[-1]) - start[request] + context[request]
        block = self._rows["blocks"][row[request], position // BLOCK_SIZE]
        longest = int(-(-(context + num_tokens).max() // BLOCK_SIZE))
        samples = np.fromiter(iteration.sample, np.bool_)
        known = np.fromiter(iteration.token, np.int64)
        pending = np.flatnonzero(known == PENDING_TOKEN)
        tokens, positions, slots, block_table, sampled, pending_places, pending_rows = self._tensors(
            known,
            position,
            block * BLOCK_SIZE + position % BLOCK_SIZE,
            self._rows["blocks"][row, :longest],
            row[samples],
            pending,
            row[request[pending]],
        )
        if len(pending):
            tokens[pending_places] = self._sampled[pending_rows]
        ragged = RaggedBatch(
            query_start=torch.from_numpy(np.concatenate((start[:1], end))),
            context_length=torch.from_numpy(context),
            positions=positions,
            slots=slots,
            block_table=block_table,
        )
        return IterationBatch(
            tokens=tokens,
            ragged=ragged,
            last=self._last(ragged, end - 1, context + num_tokens - 1, samples),
            sampling=sampling_rows(self._rows["sampling"][row[samples]], (context + num_tokens)[samples]),
            rows=sampled,
        )

    def _last(
        self, ragged: RaggedBatch, token: np.ndarray, position: np.ndarray, samples: np.ndarray
    ) -> LastTokens | None:
        """Return the requests' last tokens; `token`, `position` [R]: index and position of each, `samples` [R] bool."""
        count = int(samples.sum())
        if count in (0, len(ragged.positions)):
            return None
        tokens, requests = self._tensors(token[samples], np.flatnonzero(samples))
        last_ragged = replace(
            ragged,
            query_start=torch.arange(count + 1),
            context_length=torch.from_numpy(position[samples]),
            block_table=ragged.block_table[requests],
        )
        return LastTokens(tokens, last_ragged)

    def _admit(self, iteration: pb.Iteration) -> None:
        for admission in iteration.admission:
            while admission.row >= len(self._rows):
                self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
                self._sampled = torch.cat((self._sampled, torch.zeros_like(self._sampled)))
            row = self._rows[admission.row]
            row["num_blocks"] = 0
            row["sampling"] = sampling_row(admission.sampling)

    def _grant(self, row: np.ndarray, iteration: pb.Iteration) -> None:
        if not iteration.new_block:
            return
        blocks = np.fromiter(iteration.new_block, np.int64)
        taken = 0
        for index, count in zip(row, iteration.num_new_blocks, strict=True):
            held = self._rows["num_blocks"][index]
            self._rows["blocks"][index, held : held + count] = blocks[taken : taken + count]
            self._rows["num_blocks"][index] = held + count
            taken += count

    def _tensors(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        """Return int64 arrays on the device, by one asynchronous copy from pinned memory."""
        sizes = [array.size for array in arrays]
        packed = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=self._device.type == "cuda")
        np.concatenate([array.reshape(-1) for array in arrays], out=packed.numpy())
        parts = torch.split(packed.to(self._device, non_blocking=True), sizes)
        return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
