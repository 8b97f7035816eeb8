"""`RecordedIncrements`: iterations of increments only, recorded once for each of a few batch sizes and replayed.

Between the kernels of a small batch Python takes a tenth of the time, and launching them one by one takes a GPU's host
longer than they take the device: a recorded iteration is one call (a CUDA graph there). It works on the same memory
every time, so the inputs are copied into place first. Rows of a recording that a batch does not fill are idle: they
compute on a block of the pools that no request ever gets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.interface import RaggedBatch

from orca_worker.rows import IterationBatch

logger = logging.getLogger(__name__)

CUDA_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
CPU_SIZES = range(1, 33)
"""Launch overhead is negligible for larger batches. Every size up to the largest: on a CPU idle rows cost time, too."""
WARM_UP_RUNS = 2
"""Before a capture on CUDA: libraries load code and allocate workspace, which cannot be captured."""

Forward = Callable[[torch.Tensor, RaggedBatch, torch.Tensor | None], torch.Tensor]
"""Token ids [S], where they stand, and hidden [S, H] from the partition before (None on the first) to hidden [S, H]."""
Record = Callable[[Callable[[], torch.Tensor]], tuple[torch.Tensor, Callable[[], None]]]
"""Records work; returns its output and a function that repeats the work on the same memory. Raises RuntimeError."""


class IdleRows(NamedTuple):
    """Placeholder contents of the rows of a recording that belong to no request."""

    block: int
    """Of the pools; no request has it."""
    table_width: int
    """Blocks of the longest sequence."""


@dataclass(frozen=True, slots=True)
class _Recording:
    tokens: torch.Tensor
    ragged: RaggedBatch
    hidden: torch.Tensor | None
    output: torch.Tensor
    replay: Callable[[], None]


class RecordedIncrements:
    """Runs batches of increments by replaying `forward`; runs all eagerly once a batch cannot be recorded."""

    def __init__(
        self, forward: Forward, idle: IdleRows, device: torch.device, record: Record, sizes: Sequence[int]
    ) -> None:
        self._forward = forward
        self._idle = idle
        self._device = device
        self._record = record
        self._sizes = sizes
        self._recordings: dict[int, _Recording] = {}
        self._refused = False

    def take(self, batch: IterationBatch) -> bool:
        """Whether `run` can run this batch: one token for every request, and the head reads all or none of them."""
        one_each = len(batch.tokens) == len(batch.ragged.context_length) <= self._sizes[-1]
        return one_each and batch.last is None and not self._refused

    def run(self, batch: IterationBatch, hidden: torch.Tensor | None) -> torch.Tensor:
        """Return hidden [S, H], as `forward` does, for the batch's tokens or `hidden` [S, H]."""
        count = len(batch.tokens)
        recording = self._recording(next(size for size in self._sizes if size >= count), hidden)
        if recording is None:
            return self._forward(batch.tokens, batch.ragged, hidden)
        self._leave_idle(recording.ragged, count)
        recording.tokens[:count] = batch.tokens
        recording.ragged.positions[:count] = batch.ragged.positions
        recording.ragged.slots[:count] = batch.ragged.slots
        recording.ragged.block_table[:count, : batch.ragged.block_table.shape[1]] = batch.ragged.block_table
        if recording.hidden is not None:
            assert hidden is not None
            recording.hidden[:count] = hidden
        recording.replay()
        return recording.output[:count].clone()  # which the next replay overwrites

    def _recording(self, size: int, hidden: torch.Tensor | None) -> _Recording | None:
        if size not in self._recordings:
            try:
                self._recordings[size] = self._make(size, hidden)
            except RuntimeError as error:
                logger.warning("a batch of %d could not be recorded, kernels are launched one by one: %s", size, error)
                self._refused = True
        return self._recordings.get(size)

    def _make(self, size: int, hidden: torch.Tensor | None) -> _Recording:
        positions = torch.zeros(size, dtype=torch.int64, device=self._device)
        tokens, slots = torch.zeros_like(positions), torch.zeros_like(positions)
        ragged = RaggedBatch(
            query_start=torch.arange(size + 1),
            context_length=positions,  # an increment's token stands behind everything computed
            positions=positions,
            slots=slots,
            block_table=torch.zeros((size, self._idle.table_width), dtype=torch.int64, device=self._device),
        )
        self._leave_idle(ragged, 0)
        place = None if hidden is None else hidden.new_zeros((size, hidden.shape[1]))
        output, replay = self._record(lambda: self._forward(tokens, ragged, place))
        return _Recording(tokens, ragged, place, output, replay)

    def _leave_idle(self, ragged: RaggedBatch, count: int) -> None:
        """Lets all rows from `count` on compute on the idle block."""
        if count == len(ragged.positions):
            return
        ragged.positions[count:] = 0
        ragged.slots[count:] = self._idle.block * BLOCK_SIZE
        ragged.block_table[count:, 0] = self._idle.block


class CudaGraphRecorder:
    """A `Record` for the current CUDA device; all its recordings share their memory, as one is replayed at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
        """See Record."""
        for _ in range(WARM_UP_RUNS):
            work()
        graph = torch.cuda.CUDAGraph()
        # Another thread, such as NCCL's watchdog, may use the device meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = work()
        return output, graph.replay
