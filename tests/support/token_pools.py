"""A model whose keys and values are the tokens themselves, so that a pool shows what was written to each slot."""

from __future__ import annotations

import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_master.scheduling.request import Request
from orca_worker.rows import IterationBatch


def next_token(known: list[int]) -> int:
    """Return the model's next token: about one token in nine is 0, which can end a sequence."""
    return (sum((index + 3) * token for index, token in enumerate(known)) * 31 + len(known)) % 97 % 9


def alone(request: Request) -> list[int]:
    """Return the tokens that the model generates for a request, whatever else it computes."""
    generated: list[int] = []
    while len(generated) < request.max_gen_tokens and request.stop_token_ids.isdisjoint(generated):
        generated.append(next_token([*request.prompt, *generated]))
    return generated


def new_pool(num_blocks: int) -> torch.Tensor:
    """Return slots in which no token has been written."""
    return torch.full((num_blocks * BLOCK_SIZE,), -1)


def read(batch: IterationBatch, num_tokens: list[int], pool: torch.Tensor) -> list[list[int]]:
    """Write the tokens of an iteration to a pool; return for each entry, of `num_tokens`, what the pool has then."""
    ragged = batch.ragged
    pool[ragged.slots] = batch.tokens
    lengths = [int(ragged.context_length[index]) + count for index, count in enumerate(num_tokens)]
    blocks = ragged.block_table[:, :, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)
    return [pool[blocks[index].flatten()[:length]].tolist() for index, length in enumerate(lengths)]
