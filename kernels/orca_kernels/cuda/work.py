"""Work lists of the attention kernels: the tiles of a batch, and the splits of their contexts (plan.cu).

A tile is up to 64 rows of a request; a row is a token and a query head that shares the key/value head. The tiles follow
from the batch's shape, so the host lists them. The splits follow from the contexts, which a decode graph has on the
device, so the device lists them: once per run of the model and window, and all layers read the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from orca_contract.kv_blocks import BLOCK_SIZE

from orca_kernels.cuda.arguments import integers
from orca_kernels.cuda.modules import Kernel, Launcher
from orca_kernels.device_copies import to_device
from orca_kernels.interface import RaggedBatch

PLAN = Kernel("plan.cu", "orca_plan", torch.float32)
PLAN_THREADS = 256
ENTRY = 8
"""int32 values of an entry of the lists (work.cuh)."""
WHOLE = 64
"""Slots that a thread block of attention reads at a time; a split has a multiple of them."""
MOST_SPLITS = 128
MOST_WORKS = 512
"""Thread blocks that the splits of one request may give, over all of its tiles and key/value heads: they fill any GPU,
and more of them would only write and merge more partial results."""


class Shape(NamedTuple):
    """What the list of a batch depends on besides the batch."""

    heads: int
    """Query heads per key/value head."""
    kv_heads: int
    tile_rows: int
    window: int
    """0 without a window."""
    resident: int
    """Thread blocks that a multiprocessor holds: a launch has no more if the host does not know the number of entries,
    because their entries are dealt out beforehand."""

    @property
    def least_slots(self) -> int:
        """Slots of the smallest split: fewer if there are few key/value heads to fill the GPU with."""
        return min(max(32 * self.kv_heads, WHOLE), 4 * WHOLE)

    @property
    def most_works(self) -> int:
        """Maximum number of splits of all of a request's tiles."""
        return MOST_WORKS // self.kv_heads


class WorkList(NamedTuple):
    """The list of a batch on the device, and bounds for the host: they are exact if the host knows the contexts."""

    starts: torch.Tensor
    """[R + 1] int64: the batch's query_start."""
    contexts: torch.Tensor
    """[R] int64: the batch's context_length."""
    works: torch.Tensor
    """[W, 8] int32, see `Work` in work.cuh; W is the maximum number of entries."""
    merges: torch.Tensor
    """[M, 8] int32, see `Merge` in work.cuh; M is the maximum number of tiles with splits."""
    counts: torch.Tensor
    """[2] int32: entries of `works` and `merges`."""
    tiles: torch.Tensor
    """[T, 2] int32: request and first row of each tile."""
    part_rows: int
    """Rows of partial results of one key/value head, at most."""
    merge_rows: int
    """Rows of a tile with splits, at most."""
    blocks: int
    """Thread blocks of a launch of attention per key/value head."""


@dataclass(frozen=True, slots=True)
class _Listed:
    owner: object
    work: WorkList


class WorkLists:
    """The lists of the batches that exist."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._of_batch: WeakKeyDictionary[RaggedBatch, dict[Shape, _Listed]] = WeakKeyDictionary()

    def of(self, batch: RaggedBatch, shape: Shape, owner: object) -> WorkList:
        """Return the batch's list. `owner`: the layer that asks.

        The batch of a decode graph has other contexts in every run. So the layer that asked first lists the work anew
        each time that it asks: it is the first layer of a run, and the list is part of the graph.
        """
        lists = self._of_batch.setdefault(batch, {})
        if shape not in lists:
            lists[shape] = _Listed(owner, self._prepare(batch, shape))
        elif lists[shape].owner is not owner or on_host(batch):
            return lists[shape].work
        self._list(lists[shape].work, shape)
        return lists[shape].work

    def _prepare(self, batch: RaggedBatch, shape: Shape) -> WorkList:
        counts = np.diff(batch.query_start.numpy())
        tiles, rows = tiles_of(counts, shape)
        known = on_host(batch)
        if known:
            splits = splits_of(tiles, rows, counts, batch.context_length.numpy(), shape)
        else:
            splits = most_splits_of(tiles, rows, counts, batch.block_table.shape[1] * BLOCK_SIZE, shape)
        split = splits > 1
        of_host = (batch.context_length.numpy(),) if known else ()
        table, starts, *contexts = to_device(batch.slots.device, tiles, batch.query_start.numpy(), *of_host)
        num_works = int(splits.sum())
        resident = -(-self._launcher.multiprocessors * shape.resident // shape.kv_heads)
        return WorkList(
            starts=starts,
            contexts=contexts[0] if known else batch.context_length,
            works=torch.empty((num_works, ENTRY), dtype=torch.int32, device=table.device),
            merges=torch.empty((int(split.sum()), ENTRY), dtype=torch.int32, device=table.device),
            counts=torch.empty(2, dtype=torch.int32, device=table.device),
            tiles=table,
            part_rows=int((splits * rows)[split].sum()),
            merge_rows=int(rows[split].max(initial=0)),
            blocks=num_works if known else min(num_works, resident),
        )

    def _list(self, work: WorkList, shape: Shape) -> None:
        numbers = integers(
            len(work.tiles), shape.tile_rows, shape.heads, shape.window,
            shape.least_slots, MOST_SPLITS, shape.most_works,
        )  # fmt: skip
        tensors = (work.tiles, work.starts, work.contexts, work.works, work.merges, work.counts)
        self._launcher.launch(PLAN, (1, 1, 1), PLAN_THREADS, (*tensors, *numbers))


def on_host(batch: RaggedBatch) -> bool:
    """Return True if the host has the contexts of a batch of another device."""
    return batch.context_length.device.type == "cpu" and batch.slots.device.type != "cpu"


def tiles_of(counts: np.ndarray, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Divide the requests, of `counts` [R] tokens, into tiles: [T, 2] int32 (request, first row), and rows [T].

    The tiles with the longest contexts come first, so that no long one starts last.
    """
    numbers = -(-counts * shape.heads // shape.tile_rows)
    request = np.repeat(np.arange(len(numbers)), numbers)
    first = (np.arange(len(request)) - np.repeat(numbers.cumsum() - numbers, numbers)) * shape.tile_rows
    order = np.argsort(-first, kind="stable")
    tiles = np.stack((request, first), axis=1)[order].astype(np.int32)
    return tiles, np.minimum(counts[tiles[:, 0]] * shape.heads - tiles[:, 1], shape.tile_rows)


def splits_of(
    tiles: np.ndarray, rows: np.ndarray, counts: np.ndarray, contexts: np.ndarray, shape: Shape
) -> np.ndarray:
    """Return the number of splits of each tile [T]: the rule of plan.cu."""
    request, first = tiles[:, 0], tiles[:, 1]
    position = contexts[request] + first // shape.heads
    begin = np.maximum(position - shape.window + 1, 0) // WHOLE * WHOLE if shape.window else 0
    length = contexts[request] + (first + rows - 1) // shape.heads + 1 - begin
    wanted = _wanted(tiles, counts, length, shape)
    size = (length + wanted * WHOLE - 1) // (wanted * WHOLE) * WHOLE
    splits: np.ndarray = -(-length // size)
    return splits


def most_splits_of(
    tiles: np.ndarray, rows: np.ndarray, counts: np.ndarray, most_slots: int, shape: Shape
) -> np.ndarray:
    """Return the maximum number of splits of each tile [T] of requests with up to `most_slots` slots."""
    length = np.full(len(tiles), most_slots)
    if shape.window:
        length = np.minimum(length, shape.window + -(-rows // shape.heads) + WHOLE)
    return _wanted(tiles, counts, length, shape)


def _wanted(tiles: np.ndarray, counts: np.ndarray, length: np.ndarray, shape: Shape) -> np.ndarray:
    """Return the number of splits before their sizes are rounded up, which can only reduce it."""
    of_request = -(-counts[tiles[:, 0]] * shape.heads // shape.tile_rows)
    limit = np.clip(shape.most_works // of_request, 1, MOST_SPLITS)
    wanted: np.ndarray = np.minimum(-(-length // shape.least_slots), limit)
    return wanted
