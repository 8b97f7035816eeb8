"""Work lists: the device and the host divide contexts by the same rule, which depends on each request alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.cuda.work import MOST_SPLITS, WHOLE, Shape, WorkList, WorkLists, most_splits_of, splits_of, tiles_of
from orca_kernels.interface import RaggedBatch
from support.cuda_emulator import EmulatedLauncher
from support.recording import LaunchRecorder

REQUESTS = st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 300)), min_size=1, max_size=8)
SHAPES = st.builds(
    Shape,
    heads=st.sampled_from([1, 4, 8]),
    kv_heads=st.sampled_from([1, 2, 8, 40]),
    tile_rows=st.sampled_from([8, 64]),
    window=st.sampled_from([0, 1, 100, 4096]),
    resident=st.just(3),
)


@pytest.fixture(scope="module")
def launcher() -> EmulatedLauncher:
    return EmulatedLauncher()


def batch_of(requests: list[tuple[int, int]]) -> RaggedBatch:
    """Return a batch of (context, tokens), without blocks: the list does not depend on them."""
    contexts, counts = torch.tensor(requests).t().contiguous()
    width = -(-int((contexts + counts).max()) // BLOCK_SIZE)
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    none = torch.zeros(0, dtype=torch.int64)
    return RaggedBatch(starts, contexts, none, none, torch.zeros((len(requests), width), dtype=torch.int32))


def entries(work: WorkList) -> tuple[list[list[int]], list[list[int]]]:
    """Return the entries (request, first row, begin, end, part) and merges (request, first row, rows, splits, part)."""
    num_works, num_merges = work.counts.tolist()
    return work.works[:num_works, :5].tolist(), work.merges[:num_merges, :5].tolist()


@settings(max_examples=settings.default.max_examples * 3 // 10)
@given(requests=REQUESTS, shape=SHAPES)
@example(requests=[(0, 1)] * 600, shape=Shape(4, 8, 64, 0, 3))  # more tiles than the plan's threads
def test_the_entries_cover_each_context_once_and_the_host_counts_them(launcher, requests, shape):
    batch = batch_of(requests)
    work = WorkLists(launcher).of(batch, shape, None)
    works, merges = entries(work)
    contexts, counts = np.array(requests).T
    tiles, rows = tiles_of(counts, shape)
    splits = splits_of(tiles, rows, counts, contexts, shape)
    bounds = most_splits_of(tiles, rows, counts, batch.block_table.shape[1] * BLOCK_SIZE, shape)
    assert (splits <= bounds).all()
    assert len(works) == splits.sum() <= len(work.works)
    assert len(merges) == (splits > 1).sum() <= len(work.merges)
    parts = []
    for (request, first), count, num_rows in zip(tiles.tolist(), splits, rows, strict=True):
        own = [entry for entry in works if entry[:2] == [request, first]]
        position = contexts[request] + first // shape.heads
        begins, ends = ([entry[place] for entry in own] for place in (2, 3))
        assert len(own) == count
        assert begins[0] % WHOLE == 0
        assert 0 <= begins[0] <= max(0, position - shape.window + 1 if shape.window else 0)
        assert begins[1:] == ends[:-1], "the next split begins where the one before ends"
        assert all(end % WHOLE == 0 for end in ends[:-1])
        assert ends[-1] == contexts[request] + (first + num_rows - 1) // shape.heads + 1
        if count == 1:
            assert own[0][4] == -1
        else:
            assert [request, first, num_rows, count, own[0][4]] in merges
            assert num_rows <= work.merge_rows
            parts += [row for entry in own for row in range(entry[4], entry[4] + num_rows)]
    assert sorted(parts) == list(range(len(parts)))
    assert len(parts) <= work.part_rows


@settings(max_examples=settings.default.max_examples * 3 // 10)
@given(requests=REQUESTS, shape=SHAPES)
def test_a_request_has_the_same_splits_in_any_batch(launcher, requests, shape):
    def of(requests):
        works, _ = entries(WorkLists(launcher).of(batch_of(requests), shape, None))
        return sorted((request, first, begin, end) for request, first, begin, end, _ in works)

    alone = [(index, *entry[1:]) for index, request in enumerate(requests) for entry in of([request])]
    assert of(requests) == alone


@pytest.mark.parametrize(
    ("context", "tokens", "shape", "expected"),
    [
        (4095, 1, Shape(8, 1, 64, 0, 3), 64),  # one key/value head of a rank: 64 slots each
        (32_767, 1, Shape(8, 1, 64, 0, 3), MOST_SPLITS),
        (32_767, 1, Shape(4, 8, 64, 0, 3), 64),
        (4095, 1, Shape(1, 32, 64, 0, 3), 16),
        (255, 1, Shape(4, 8, 64, 0, 3), 1),
        (
            32_000,
            16,
            Shape(4, 8, 64, 0, 3),
            63,
        ),  # a short chunk over a long context: 501 or 502 slots, and 64 whole times
        (0, 4096, Shape(4, 8, 64, 0, 3), 256),  # a prompt: every tile is one entry
        (32_767, 1, Shape(4, 8, 64, 4096, 3), 16),
    ],
)
def test_splits_by_length_and_heads(launcher, context, tokens, shape, expected):
    works, _ = entries(WorkLists(launcher).of(batch_of([(context, tokens)]), shape, None))
    assert len(works) == expected


def test_the_first_layer_of_a_run_lists_the_work_anew(launcher):
    """A decode graph changes the contexts on the device between the runs, and its kernels replay on the same memory."""
    recorder = LaunchRecorder(launcher)
    lists, shapes = WorkLists(recorder), (Shape(4, 2, 64, 0, 3), Shape(4, 2, 64, 128, 3))
    batch = batch_of([(2000, 1), (64, 1)])
    layers = [object() for _ in range(4)]

    def run() -> torch.Tensor:
        return [lists.of(batch, shapes[n % 2], layer).works for n, layer in enumerate(layers)][-1]

    def ends() -> list[list[int]]:
        return [sorted(entry[3] for entry in entries(lists.of(batch, shape, layers[-1]))[0]) for shape in shapes]

    run()  # as before a capture
    _, replay = recorder(run)
    batch.context_length.copy_(torch.tensor([100, 1500]))
    replay()
    expected = WorkLists(launcher)
    assert ends() == [
        sorted(entry[3] for entry in entries(expected.of(replace(batch), shape, None))[0]) for shape in shapes
    ]


def test_a_launch_has_no_more_blocks_than_the_device_holds_if_the_host_does_not_know_the_contexts(launcher):
    batch = batch_of([(4000, 1)] * 20)
    assert WorkLists(launcher).of(batch, Shape(4, 1, 64, 0, 3), None).blocks == 3 * launcher.multiprocessors
