"""`DecodeGraphs`: decode iterations, recorded once per batch size and replayed. On a GPU they are CUDA graphs.

On a CPU, Python takes a tenth of the time of a small batch; on a GPU, the host needs longer to launch the kernels than
the device to run them. A replay is one call. It works on fixed memory, so inputs are copied there first. A batch is
padded to a recorded size: padding rows compute on a block of the pools that belongs to no request.

On a CPU a recording is an iteration, made when a batch size first occurs. On a GPU it takes several forward passes, so
all sizes are recorded before the rank serves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.interface import RaggedBatch
from orca_kernels.low_rank import AdapterRows

from orca_worker.adapters import IterationAdapters
from orca_worker.rows import IterationBatch

logger = logging.getLogger(__name__)

CUDA_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
CPU_SIZES = range(1, 33)
"""Launch overhead is negligible for larger batches. Every size is recorded, because padding rows cost time on a CPU."""
WARM_UP_RUNS = 2
"""Runs before a CUDA capture, in which libraries load code and allocate workspace: neither can be captured."""

Forward = Callable[[torch.Tensor, RaggedBatch, torch.Tensor | None, IterationAdapters | None], torch.Tensor]
"""Returns hidden [S, H] for token ids [S], their batch, hidden [S, H] of the partition before (None: the first), and
the adapters of the rows."""
Record = Callable[[Callable[[], torch.Tensor]], tuple[torch.Tensor, Callable[[], None]]]
"""Records a function; returns its output and a replay, which works on the same memory. Raises RuntimeError."""


class PaddingRows(NamedTuple):
    """Contents of padding rows."""

    block: int
    """Block of the pools that belongs to no request."""
    table_width: int
    """Blocks of a sequence of the maximum length."""


@dataclass(frozen=True, slots=True)
class _DecodeGraph:
    tokens: torch.Tensor
    ragged: RaggedBatch
    hidden: torch.Tensor | None
    adapters: torch.Tensor | None
    """[size] number of each row's adapter."""
    output: torch.Tensor
    replay: Callable[[], None]


class DecodeGraphs:
    """Runs decode batches by replaying `forward`; after a recording fails, all batches run eagerly.

    One `record` for each DecodeGraphs: the memory pool of CUDA graphs ends with the last graph.
    """

    def __init__(
        self,
        forward: Forward,
        padding: PaddingRows,
        device: torch.device,
        record: Record,
        sizes: Sequence[int],
        records_adapters: bool = False,
    ) -> None:
        """`records_adapters`: a replay of `forward` reads which row uses which adapter (`LowRank.recordable`)."""
        self._forward = forward
        self._padding = padding
        self._device = device
        self._record = record
        self._sizes = sizes
        self._records_adapters = records_adapters
        self._graphs: dict[tuple[int, bool], _DecodeGraph] = {}
        """By size, and whether rows have adapters."""
        self.refusal = ""
        """Why a recording failed; empty if none has failed."""

    def accepts(self, batch: IterationBatch) -> bool:
        """Return True if `run` supports the batch: one token per request, of which the head reads all or none."""
        one_each = len(batch.tokens) == len(batch.ragged.context_length) <= self._sizes[-1]
        adapters = batch.adapters is None or self._records_adapters
        return one_each and batch.last is None and adapters and not self.refusal

    def forget_adapters(self) -> None:
        """Drop the recordings of rows with adapters, because an adapter comes or goes."""
        self._graphs = {key: graph for key, graph in self._graphs.items() if graph.adapters is None}

    def record_all(self, hidden: torch.Tensor | None) -> None:
        """Record every size, the largest first, whose memory the others use; `hidden` [1, H] as in `run`.

        Ranks run the same passes, whose sums need each other, also if one of them cannot record.
        """
        begin = time.monotonic()
        logger.info("recording %d batch sizes", len(self._sizes))
        for size in reversed(self._sizes):
            self._graph(size, hidden, None)
        if self.refusal:
            self._graphs.clear()  # their memory
        logger.info("recorded %d batch sizes in %.1f s", len(self._graphs), time.monotonic() - begin)

    def run(self, batch: IterationBatch, hidden: torch.Tensor | None) -> torch.Tensor:
        """Return what `forward` returns for the batch: hidden [S, H]."""
        count = len(batch.tokens)
        graph = self._graph(next(size for size in self._sizes if size >= count), hidden, batch.adapters)
        if graph is None:
            return self._forward(batch.tokens, batch.ragged, hidden, batch.adapters)
        self._pad(graph.ragged, count)
        graph.tokens[:count] = batch.tokens
        graph.ragged.positions[:count] = batch.ragged.positions
        graph.ragged.slots[:count] = batch.ragged.slots
        graph.ragged.block_table[:count, : batch.ragged.block_table.shape[1]] = batch.ragged.block_table
        if graph.hidden is not None:
            assert hidden is not None
            graph.hidden[:count] = hidden
            graph.hidden[count:] = 0  # the layers add in place: padding rows would grow from replay to replay
        if graph.adapters is not None:
            assert batch.adapters is not None
            graph.adapters[:count] = batch.adapters.of_tokens.adapters
            graph.adapters[count:] = 0
        graph.replay()
        return graph.output[:count].clone()  # the next replay overwrites the output

    def _graph(self, size: int, hidden: torch.Tensor | None, adapters: IterationAdapters | None) -> _DecodeGraph | None:
        key = (size, adapters is not None)
        if key not in self._graphs:
            try:
                self._graphs[key] = self._capture(size, hidden, adapters)
            except RuntimeError as error:
                if not self.refusal:
                    logger.warning("cannot record a batch of %d, so kernels are launched one by one: %s", size, error)
                self.refusal = str(error) or type(error).__name__
        return self._graphs.get(key)

    def _capture(self, size: int, hidden: torch.Tensor | None, adapters: IterationAdapters | None) -> _DecodeGraph:
        positions = torch.zeros(size, dtype=torch.int64, device=self._device)
        tokens, slots = torch.zeros_like(positions), torch.zeros_like(positions)
        ragged = RaggedBatch(
            query_start=torch.arange(size + 1),
            context_length=positions,  # a decode token's position is the number of tokens before
            positions=positions,
            slots=slots,
            block_table=torch.zeros((size, self._padding.table_width), dtype=torch.int32, device=self._device),
        )
        self._pad(ragged, 0)
        place = None if hidden is None else hidden.new_zeros((size, hidden.shape[1]))
        numbers, rows = None, None
        if adapters is not None:
            numbers = torch.zeros_like(positions)
            of_rows = AdapterRows(numbers, None)
            rows = IterationAdapters(of_rows, of_rows)
        output, replay = self._record(lambda: self._forward(tokens, ragged, place, rows))
        return _DecodeGraph(tokens, ragged, place, numbers, output, replay)

    def _pad(self, ragged: RaggedBatch, count: int) -> None:
        """Turn the rows from `count` on into padding."""
        if count == len(ragged.positions):
            return
        ragged.positions[count:] = 0
        ragged.slots[count:] = self._padding.block * BLOCK_SIZE
        ragged.block_table[count:, 0] = self._padding.block


class CudaGraphRecorder:
    """A `Record` for the current CUDA device. Its graphs share one memory pool, as only one is replayed at a time.

    Torch's allocator ends a pool with its last graph, and refuses a capture into a pool that has ended.
    """

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
