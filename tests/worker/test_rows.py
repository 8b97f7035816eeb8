"""RowTable: what a rank keeps per request, against a naive account of the same grants."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_protos import engine_pb2 as pb
from orca_worker import rows
from orca_worker.rows import RowTable

CPU = torch.device("cpu")


def with_blocks_on_device(table: RowTable) -> RowTable:
    """Let a table keep the blocks in tensors, as on a GPU."""
    table._blocks = torch.zeros(table._rows["blocks"].shape, dtype=torch.int32)
    return table


@given(st.lists(st.lists(st.tuples(st.integers(0, 150), st.integers(1, 40)), min_size=1, max_size=6), max_size=8))
def test_slots_and_positions_follow_the_grants(iterations):
    """Rows begin, go on, and begin again under the same number; rows beyond the initial table grow it."""
    table = RowTable(max_model_len=4096, device=CPU)
    on_gpu = with_blocks_on_device(RowTable(max_model_len=4096, device=CPU))
    blocks_of: dict[int, list[int]] = {}
    length_of: dict[int, int] = {}
    next_block = 1000
    for number, parts in enumerate(iterations):
        iteration = pb.Iteration()
        expected_slots, expected_positions = [], []
        for row, count in dict(parts).items():
            begins = row not in length_of or (number + row) % 3 == 0
            if begins:
                blocks_of[row], length_of[row] = [], 0
                iteration.admission.add(row=row)
            context = length_of[row]
            needed = -(-(context + count) // BLOCK_SIZE) - len(blocks_of[row])
            granted = list(range(next_block, next_block + needed))[::-1]
            next_block += needed
            blocks_of[row] += granted
            iteration.row.append(row)
            iteration.num_tokens.append(count)
            iteration.context_length.append(context)
            iteration.token.extend(range(count))
            iteration.num_new_blocks.append(len(granted))
            iteration.new_block.extend(granted)
            iteration.sample.append(count % 2 == 0)
            for position in range(context, context + count):
                expected_positions.append(position)
                expected_slots.append(blocks_of[row][position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE)
            length_of[row] = context + count
        batch = table.batch(iteration)
        assert batch.ragged.slots.tolist() == expected_slots
        assert batch.ragged.positions.tolist() == expected_positions
        assert batch.tokens.tolist() == list(iteration.token)
        sampling = [index for index, wanted in enumerate(iteration.sample) if wanted]
        if batch.last is None:
            assert len(sampling) in (0, len(batch.tokens))
        else:
            assert batch.last.tokens.tolist() == [int(batch.ragged.query_start[index + 1]) - 1 for index in sampling]
            assert batch.last.ragged.query_start.tolist() == list(range(len(sampling) + 1))
            ends = [length_of[iteration.row[index]] - 1 for index in sampling]
            assert batch.last.ragged.context_length.tolist() == ends
            assert batch.last.ragged.block_table.tolist() == batch.ragged.block_table[sampling].tolist()
            assert batch.last.ragged.slots is batch.ragged.slots, "every token's keys and values are stored"
        assert batch.sampling.position.tolist() == [length_of[iteration.row[index]] for index in sampling]
        for table_of_blocks in (batch.ragged.block_table, on_gpu.batch(iteration).ragged.block_table):
            assert table_of_blocks.dtype == torch.int32
            assert table_of_blocks.shape == batch.ragged.block_table.shape
            for index, row in enumerate(iteration.row):
                held = blocks_of[row]
                assert table_of_blocks[index, : len(held)].tolist() == held


def test_sampling_facts_stay_with_the_row():
    table = RowTable(64, CPU)
    sampling = pb.Sampling(temperature=0.5, top_p=0.25, seed=2**64 - 1, choice=3)
    first = pb.Iteration(
        row=[7], num_tokens=[1], context_length=[0], token=[1], num_new_blocks=[1], new_block=[0], sample=[True],
        admission=[pb.Admission(row=7, sampling=sampling)],
    )  # fmt: skip
    second = pb.Iteration(
        row=[7], num_tokens=[1], context_length=[1], token=[1], num_new_blocks=[0], sample=[True]
    )  # fmt: skip
    for iteration in (first, second):
        rows = table.batch(iteration).sampling
        assert (rows.temperature[0], rows.top_p[0], int(rows.seed[0]), int(rows.choice[0])) == (0.5, 0.25, 2**64 - 1, 3)


def test_only_new_blocks_are_copied_to_a_gpu(monkeypatch):
    """The table of 128 requests of 32,000 tokens would take 2 MB in every iteration."""
    table = with_blocks_on_device(RowTable(32_768, CPU))
    copied = []
    plain = rows.to_device

    def noted(device: torch.device, *arrays: np.ndarray) -> list[torch.Tensor]:
        copied.append(sum(array.nbytes for array in arrays))
        return plain(device, *arrays)

    monkeypatch.setattr(rows, "to_device", noted)
    increment = pb.Iteration(
        row=range(128), num_tokens=[1] * 128, context_length=[32_000] * 128, token=[1] * 128,
        num_new_blocks=[1] + [0] * 127, new_block=[5], sample=[True] * 128,
        admission=[pb.Admission(row=row) for row in range(128)],
    )  # fmt: skip
    assert table.batch(increment).ragged.block_table.shape == (128, 2001)
    assert copied == [8 * (5 * 128 + 2) + 4]
