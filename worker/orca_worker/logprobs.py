"""Log probabilities of the model's logits, masked but without penalties, for the requests that want them.

`logprob_tensors` computes them on the device, `logprob_messages` makes the messages when they are on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from orca_kernels.device_copies import to_device
from orca_protos import engine_pb2 as pb

from orca_worker.sampling import NUMBERS_AT_ONCE, SamplingRows


def logprob_tensors(logits: torch.Tensor, tokens: torch.Tensor, rows: SamplingRows) -> list[torch.Tensor]:
    """Return log probabilities of the sampled `tokens` [K] and of the likeliest tokens, for the L rows that want any.

    `logits` [K, vocabulary]. The result: [L] those of sampled tokens, [L, N] those of the likeliest tokens, descending,
    and [L, N] these tokens, of equal ones the lower ids first. N is the largest number that a row wants. Empty without
    such a row.
    """
    wanted = np.flatnonzero(rows.logprobs >= 0)
    if len(wanted) == 0:
        return []
    (index,) = to_device(logits.device, wanted)
    count, at_once = int(rows.logprobs[wanted].max()), max(1, NUMBERS_AT_ONCE // logits.shape[-1])
    slices = [index[first : first + at_once] for first in range(0, len(wanted), at_once)]
    parts = [at_tokens(torch.log_softmax(logits[part], dim=-1), tokens[part], count) for part in slices]
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def at_tokens(logprobs: torch.Tensor, tokens: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Return log probabilities of `tokens` [L] and of the `count` likeliest tokens, from `logprobs` [L, vocabulary].

    The result: [L], [L, N] and [L, N] as in `logprob_tensors`; N is `count`, or the vocabulary's size if that is less.
    """
    own = logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)
    if count == 0:
        likeliest = torch.empty((len(tokens), 0), dtype=torch.int64, device=tokens.device)
    else:
        # torch.topk chooses among equal values by their number, so the tokens' ids make them distinct.
        likeliest = _ordered(logprobs).topk(min(count, logprobs.shape[-1])).indices
    return [own, logprobs.gather(1, likeliest), likeliest]


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """Return int64 numbers in the order of float32 values [L, vocabulary]; of equal values the first is the largest."""
    bits = (values + 0.0).view(torch.int32)  # + 0.0: one zero
    ascending = bits.bitwise_xor_((bits >> 31).bitwise_and_(0x7FFFFFFF)).long()
    return ascending.mul_(1 << 32).sub_(torch.arange(values.shape[-1], device=values.device))


def logprob_messages(tensors: Sequence[torch.Tensor], rows: SamplingRows) -> list[pb.Logprobs]:
    """Return the messages of `logprob_tensors` on the host, each with as many tokens as its row wants.

    Tokens that a mask forbids are left out.
    """
    if not tensors:
        return []
    wanted = np.flatnonzero(rows.logprobs >= 0)
    counts = rows.logprobs[wanted].tolist()
    return [
        pb.Logprobs(index=place, sampled=sampled, token=tokens[:kept], logprob=values[:kept])
        for place, count, sampled, values, tokens in zip(
            wanted.tolist(), counts, *(tensor.tolist() for tensor in tensors), strict=True
        )
        for kept in [sum(value != -math.inf for value in values[:count])]
    ]
