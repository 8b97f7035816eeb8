"""The iterations that a rank runs before it serves: they take the most memory, and compile the kernels of a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from orca_contract.kv_blocks import BLOCK_SIZE
from orca_protos import engine_pb2 as pb

CPU_TOKENS = 64
"""On the CPU a warm-up only initialises libraries; the memory of an iteration is estimated."""

SAMPLING = pb.Sampling(temperature=1.0, top_p=0.9, presence_penalty=1.0, logprobs=1)
"""Parameters that use all kernels of a sampler."""


def warm_up_iterations(max_tokens: int, max_model_len: int, on_cpu: bool) -> list[pb.Iteration]:
    """Return iterations of one request each: a prompt of `max_tokens` tokens, or of as many as a request can have.

    On a GPU also the last increment of a sequence of the maximum length, whose split attention has kernels of its own:
    the first use of a kernel compiles it.
    """
    num_tokens = min(max_tokens, max_model_len)
    if on_cpu:
        return [_iteration(0, min(num_tokens, CPU_TOKENS))]
    increment = _iteration(max_model_len - 1, 1)
    increment.new_block[:] = [0] * len(increment.new_block)  # it reads zeros: one block is enough
    return [_iteration(0, num_tokens), increment]


def _iteration(context: int, num_tokens: int) -> pb.Iteration:
    blocks: Sequence[int] = range(-(-(context + num_tokens) // BLOCK_SIZE))
    return pb.Iteration(
        row=[0],
        num_tokens=[num_tokens],
        context_length=[context],
        token=[0] * num_tokens,
        num_new_blocks=[len(blocks)],
        new_block=blocks,
        sample=[True],
        admission=[pb.Admission(row=0, sampling=SAMPLING)],
    )
