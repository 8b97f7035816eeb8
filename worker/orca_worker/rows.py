"""`RowTable`: a rank's state per request (K/V blocks and sampling parameters), and the batches built from it.

The master assigns rows and blocks; an admission resets its row. Every rank of every partition processes the same
iterations, and so has the same table. The block ids of all rows are also on a GPU, to which only new ones are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.device_copies import to_device
from orca_kernels.interface import RaggedBatch
from orca_protos import engine_pb2 as pb
from orca_protos.wire import PENDING_TOKEN

from orca_worker.adapters import IterationAdapters, iteration_adapters
from orca_worker.prompt_results import PromptRows, num_read, prompt_rows
from orca_worker.sampling import SAMPLING_ROW, SamplingRows, sampling_row, sampling_rows

INITIAL_ROWS = 64
Parameters = Callable[[pb.Iteration, SamplingRows], Sequence[np.ndarray]]
"""Returns int64 arrays that the sampler of an iteration needs on the device."""


@dataclass(frozen=True, slots=True)
class LastTokens:
    """The tokens whose output the head reads: the last one of each request that samples.

    Of a prompt with results (`Iteration.prompt`, `Iteration.pooled`) all tokens from the first of its positions on.
    """

    tokens: torch.Tensor
    """[count] int64 index among the iteration's tokens."""
    ragged: RaggedBatch
    """Batch of these tokens, but positions and slots of the whole iteration, whose keys and values are all stored."""


@dataclass(frozen=True, slots=True)
class IterationBatch:
    """One iteration as tensors."""

    tokens: torch.Tensor
    """[S] int64 input tokens."""
    ragged: RaggedBatch
    last: LastTokens | None
    """None if the head reads all tokens, or none."""
    sampling: SamplingRows
    rows: torch.Tensor
    """[K] int64 rows that sample."""
    parameters: Sequence[torch.Tensor] = ()
    """The sampler's arrays on the device."""
    prompt: PromptRows | None = None
    """Of an iteration with results of prompts; else the rows that the head reads are those that sample."""
    adapters: IterationAdapters | None = None
    """None if no request has one."""


def read_tokens(end: np.ndarray, counts: np.ndarray) -> np.ndarray | None:
    """Return the last `counts` [R] tokens of the requests, which end at `end` [R]; None for all tokens, or none."""
    if counts.sum() in (0, end[-1]):
        return None
    requests = np.flatnonzero(counts)
    start = counts[requests].cumsum() - counts[requests]
    tokens: np.ndarray = np.arange(counts.sum()) + np.repeat((end - counts)[requests] - start, counts[requests])
    return tokens


class RowTable:
    """State of all rows; grows when a higher row number is admitted."""

    def __init__(self, max_model_len: int, device: torch.device) -> None:
        self._device = device
        width = -(-max_model_len // BLOCK_SIZE)
        numbers = [("num_blocks", np.int64), ("sampling", SAMPLING_ROW), ("adapter", np.int64)]
        layout = np.dtype([("blocks", np.int32, (width,)), *numbers], align=True)
        self._rows = np.zeros(INITIAL_ROWS, layout)
        self._blocks = torch.zeros(
            (0 if device.type == "cpu" else INITIAL_ROWS, width), dtype=torch.int32, device=device
        )
        """Each row's blocks on a GPU; empty on the CPU."""
        self._sampled = torch.zeros(INITIAL_ROWS, dtype=torch.int64, device=device)
        """Each row's last token."""

    def keep_sampled(self, batch: IterationBatch, tokens: torch.Tensor) -> None:
        """Keep the sampled tokens [K] of a batch: a later batch may need them before the master knows them."""
        self._sampled[batch.rows] = tokens

    def batch(self, iteration: pb.Iteration, parameters: Parameters = lambda iteration, rows: ()) -> IterationBatch:
        """Apply an iteration's admissions and new blocks; return its batch, with the arrays of `parameters`.

        Each PENDING_TOKEN, which the master did not know yet, is replaced by the last token sampled in its row.
        """
        self._admit(iteration)
        row = np.fromiter(iteration.row, np.int64)
        num_tokens = np.fromiter(iteration.num_tokens, np.int64)
        context = np.fromiter(iteration.context_length, np.int64)
        granted = self._grant(row, iteration)

        end = num_tokens.cumsum()
        start = end - num_tokens
        request = np.repeat(np.arange(len(row)), num_tokens)
        position = np.arange(end[-1]) - start[request] + context[request]
        block = self._rows["blocks"][row[request], position // BLOCK_SIZE].astype(np.int64)
        longest = int(-(-(context + num_tokens).max() // BLOCK_SIZE))
        samples = np.fromiter(iteration.sample, np.bool_)
        known = np.fromiter(iteration.token, np.int64)
        pending = np.flatnonzero(known == PENDING_TOKEN)
        sampling = sampling_rows(self._rows["sampling"][row[samples]], (context + num_tokens)[samples])
        for_sampler = parameters(iteration, sampling)
        tokens, positions, slots, sampled, pending_places, pending_rows, *others = to_device(
            self._device,
            known,
            position,
            block * BLOCK_SIZE + position % BLOCK_SIZE,
            row[samples],
            pending,
            row[request[pending]],
            *for_sampler,
            *((self._rows["blocks"][row, :longest],) if len(self._blocks) == 0 else (row, *granted)),
        )
        of_sampler, of_blocks = others[: len(for_sampler)], others[len(for_sampler) :]
        if len(pending):
            tokens[pending_places] = self._sampled[pending_rows]
        ragged = RaggedBatch(
            query_start=torch.from_numpy(np.concatenate((start[:1], end))),
            context_length=torch.from_numpy(context),
            positions=positions,
            slots=slots,
            block_table=of_blocks[0] if len(self._blocks) == 0 else self._block_table(longest, *of_blocks),
        )
        counts, has_results = num_read(iteration, num_tokens, samples), bool(iteration.prompt or iteration.pooled)
        read = read_tokens(end, counts)
        return IterationBatch(
            tokens=tokens,
            ragged=ragged,
            last=None if read is None else self._last(ragged, read, context + num_tokens, counts),
            sampling=sampling,
            rows=sampled,
            parameters=of_sampler,
            prompt=prompt_rows(iteration, counts, samples, self._device) if has_results else None,
            adapters=iteration_adapters(self._rows["adapter"][row[request]], read, self._device),
        )

    def _last(self, ragged: RaggedBatch, token: np.ndarray, position: np.ndarray, counts: np.ndarray) -> LastTokens:
        """Return the tokens `token` (`read_tokens`); `position` [R]: those after the requests' last tokens."""
        requests = np.flatnonzero(counts)
        start = np.concatenate(([0], counts[requests].cumsum()))
        tokens, of_requests = to_device(self._device, token, requests)
        last_ragged = replace(
            ragged,
            query_start=torch.from_numpy(start),
            context_length=torch.from_numpy((position - counts)[requests]),
            block_table=ragged.block_table[of_requests],
        )
        return LastTokens(tokens, last_ragged)

    def _admit(self, iteration: pb.Iteration) -> None:
        for admission in iteration.admission:
            while admission.row >= len(self._rows):
                self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
                self._sampled = torch.cat((self._sampled, torch.zeros_like(self._sampled)))
                self._blocks = torch.cat((self._blocks, torch.zeros_like(self._blocks)))
            row = self._rows[admission.row]
            row["num_blocks"] = 0
            row["sampling"] = sampling_row(admission.sampling)
            row["adapter"] = admission.adapter

    def _grant(self, row: np.ndarray, iteration: pb.Iteration) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Add an iteration's new blocks to the table; return the row, the place in the row, and the id of each."""
        blocks = np.fromiter(iteration.new_block, np.int32)
        if len(blocks) == 0:
            return row[:0], row[:0], blocks
        counts = np.fromiter(iteration.num_new_blocks, np.int64)
        rows = np.repeat(row, counts)
        places = np.arange(len(rows)) + np.repeat(self._rows["num_blocks"][row] - counts.cumsum() + counts, counts)
        self._rows["blocks"][rows, places] = blocks
        np.add.at(self._rows["num_blocks"], row, counts)  # a row with drafted tokens has several entries
        return rows, places, blocks

    def _block_table(
        self, longest: int, row: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, blocks: torch.Tensor
    ) -> torch.Tensor:
        """Add new blocks to the GPU's table; return the first `longest` blocks of each `row`."""
        if len(blocks):
            self._blocks[rows, places] = blocks
        return self._blocks[:, :longest].index_select(0, row)
