"""Exactness level L2 (docs/contracts.md, section 7): its conditions, and the self-test of a loaded partition.

A recovered request is computed again in one chunk, beside other requests than before. Its continuation is the same bit
for bit if the result of a token depends neither on the chunk nor on the other requests of the iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_protos import engine_pb2 as pb

from orca_worker.errors import ModelError
from orca_worker.loaded_partition import LoadedPartition
from orca_worker.rows import IterationBatch, RowTable
from orca_worker.torch_import import complete_torch

LENGTH = 100
"""Tokens of the self-test's request: more than a tile of the attention (64), and than the rows of any block."""
INCREMENTS = 5
Run = Callable[[pb.Iteration], torch.Tensor]
"""Runs an iteration; returns the rows [K, ...] of its tokens, or of its sampled tokens, in the order of requests."""


def check_conditions(loaded: LoadedPartition) -> None:
    """Raise ModelError if level L2 cannot be had with this model or processor; load_request.py has refused GPUs."""
    if loaded.dtype != torch.float32:
        name = str(loaded.dtype).removeprefix("torch.")
        raise ModelError(f"--deterministic on: the model is computed in {name}, add --dtype float32")
    if not loaded.kernels.fixed_order:
        raise ModelError(
            f"--deterministic on: the kernels of this processor ({loaded.kernels.name}) have no fixed order of sums, "
            "a processor with AVX2 or of 64-bit Arm is needed"
        )
    if any(attention.is_reference for attention in loaded.model.attentions()):
        raise ModelError(
            f"--deterministic on: the CPU kernels lack the attention of this {loaded.config.family} model (head "
            f"dimension {loaded.config.head_dim}), and that of plain torch has no fixed order of sums"
        )


@torch.inference_mode()
def self_test_partition(
    run: Callable[[IterationBatch, torch.Tensor | None], torch.Tensor], loaded: LoadedPartition, num_blocks: int
) -> None:
    """Test a partition, whose `run` takes a batch and the activations of the partition before: see `self_test`.

    On later partitions a row of a table replaces each token's activations.
    """
    rows = RowTable(loaded.max_model_len, loaded.device)
    complete_torch()  # for the generator
    shape, generator = (LENGTH, loaded.config.hidden_size), torch.Generator().manual_seed(0)
    table = None if loaded.request.partition == 0 else torch.randn(shape, generator=generator)

    def run_iteration(iteration: pb.Iteration) -> torch.Tensor:
        batch = rows.batch(iteration)
        return run(batch, None if table is None else table[batch.tokens])

    self_test(run_iteration, loaded.config.vocabulary_size, loaded.max_model_len, num_blocks)


def self_test(run: Run, vocabulary_size: int, max_model_len: int, num_blocks: int) -> None:
    """Compute a request in chunks and increments beside another request, and as a whole; compare the last rows.

    Raises ModelError if one bit differs. The blocks 0 to `num_blocks` are overwritten.
    """
    length = min(LENGTH, max_model_len, (num_blocks - 1) * BLOCK_SIZE)
    if length < INCREMENTS + 3:
        raise ModelError(f"--deterministic on: the self-test needs {2 * BLOCK_SIZE} K/V slots, raise --kv-slots")
    tokens = [place % vocabulary_size for place in range(length)]
    begin = length // 3
    middle = begin + INCREMENTS
    run(_iteration(tokens, 0, begin, beside=tokens[:3]))
    for place in range(begin, middle):
        row = run(_iteration(tokens, place, place + 1, beside=tokens[:1], beside_context=3 + place - begin))[-1]
    by_increments = row.clone()
    run(_iteration(tokens, middle, length - 1))
    by_chunks = run(_iteration(tokens, length - 1, length))[-1].clone()
    for chunked, end in ((by_increments, middle), (by_chunks, length)):
        whole = run(_iteration(tokens, 0, end))[-1]
        if not torch.equal(chunked, whole):
            difference = (chunked - whole).abs().max().item()
            raise ModelError(
                f"--deterministic on: the self-test failed: token {end} of a request computed as a whole and in chunks "
                f"differs by {difference:.1e}. Report this with the processor and the model; without the option the "
                "server runs at exactness level L1"
            )


def _iteration(
    tokens: Sequence[int], begin: int, end: int, beside: Sequence[int] = (), beside_context: int = 0
) -> pb.Iteration:
    """Return the iteration of `tokens[begin:end]` in row 0, after the tokens `beside` of another request in row 1."""
    blocks = -(-len(tokens) // BLOCK_SIZE)
    iteration = pb.Iteration()
    if beside:
        _add(iteration, 1, beside, beside_context, [blocks])
    _add(iteration, 0, tokens[begin:end], begin, range(blocks))
    return iteration


def _add(iteration: pb.Iteration, row: int, tokens: Sequence[int], context: int, blocks: Sequence[int]) -> None:
    """Add a request's tokens to the iteration; the request is admitted with its `blocks` if it has no `context`."""
    iteration.row.append(row)
    iteration.num_tokens.append(len(tokens))
    iteration.context_length.append(context)
    iteration.token.extend(tokens)
    iteration.sample.append(True)
    iteration.num_new_blocks.append(0 if context else len(blocks))
    if not context:
        iteration.admission.add(row=row)
        iteration.new_block.extend(blocks)
