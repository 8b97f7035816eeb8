"""Log probabilities of prompt tokens, computed in bounded slices.

An iteration names the positions (`Iteration.prompt` in protos/engine.proto), so that a rank keeps no state for them.
The logits of a prompt would fill the memory, 20 GB for 32,000 tokens of a vocabulary of 150,000: they are computed for
a few rows at a time, of which only the wanted numbers stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from orca_protos import engine_pb2 as pb

from orca_worker.device_copies import HostCopies
from orca_worker.logprobs import at_tokens

SLICE_ELEMENTS = 2**21
"""Most logits at a time: 8 MiB, and about ten times as much for what is computed from them."""


def start_prompt_logprobs(
    logits: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    scored: torch.Tensor,
    targets: torch.Tensor,
    iteration: pb.Iteration,
    vocabulary: int,
    copies: HostCopies | None,
) -> Callable[[pb.IterationResult], None]:
    """Compute the log probabilities of an iteration; return a function that waits and writes them to a result.

    `logits`: from rows of `hidden` [count, H] to float32 [rows, vocabulary]. `scored` [P], int64: rows after which a
    token of a prompt has its log probability, and `targets` [P], int64: these tokens. `copies`: None on ranks that have
    only a part of the logits' columns, which the collective of `logits` needs nevertheless.
    """
    device, num_rows = scored.device, len(scored)
    count = min(max(entry.num_likeliest for entry in iteration.prompt), vocabulary)
    # Allocated first: small results between large temporary tensors would keep malloc from using their memory again.
    found = [
        torch.empty(num_rows, device=device),
        torch.empty((num_rows, count), device=device),
        torch.empty((num_rows, count), dtype=torch.int64, device=device),
        torch.empty(num_rows, dtype=torch.int64, device=device),
    ]
    size = max(1, SLICE_ELEMENTS // vocabulary)
    for start in range(0, num_rows, size):
        part = slice(start, start + size)
        of_part = logits(hidden[scored[part]])
        if copies is not None:
            for whole, values in zip(found, _with_ranks(of_part, targets[part], count), strict=True):
                whole[part] = values
    if copies is None:
        return lambda result: None
    on_host = copies.start(*found)
    return lambda result: result.prompt.extend(prompt_messages(on_host(), iteration))


def _with_ranks(logits: torch.Tensor, targets: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Return the tensors of `at_tokens`, and the ranks [L] of the targets: the number of likelier tokens, plus 1."""
    logprobs = torch.log_softmax(logits, dim=-1)
    own, values, likeliest = at_tokens(logprobs, targets, count)
    return [own, values, likeliest, (logprobs > own.unsqueeze(1)).sum(dim=-1) + 1]


def prompt_messages(tensors: Sequence[torch.Tensor], iteration: pb.Iteration) -> list[pb.PromptLogprobs]:
    """Return a message for each entry of `Iteration.prompt`, with as many likeliest tokens as the entry wants."""
    messages, start = [], 0
    for entry in iteration.prompt:
        own, values, likeliest, ranks = (tensor[start : start + len(entry.token)] for tensor in tensors)
        start += len(entry.token)
        messages.append(
            pb.PromptLogprobs(
                index=entry.index,
                logprob=own.tolist(),
                rank=ranks.tolist(),
                likely_token=likeliest[:, : entry.num_likeliest].flatten().tolist(),
                likely_logprob=values[:, : entry.num_likeliest].flatten().tolist(),
            )
        )
    return messages
