"""Sampling, vectorised over the requests of an iteration; noise is counter-based.

The noise of a token is a function of (seed, choice, position) and of nothing else: not of the batch,
the row, the worker or a restart (docs/contracts.md, section 5). So a replay draws the same token.
"""

from __future__ import annotations

import numpy as np
import torch
from orca_protos import engine_pb2 as pb

from orca_worker.rows import SamplingRows

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniform(seed: np.ndarray, choice: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Returns float64 in [0, 1) of the same shape as the three uint64 arrays.

    SplitMix64's finaliser (Steele et al., OOPSLA 2014) over the three counters in turn.
    """
    state = np.zeros_like(seed)
    for counter in (seed, choice, position):
        state = _mix(state + counter * _GOLDEN + _GOLDEN)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(value: np.ndarray) -> np.ndarray:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = value ^ (value >> np.uint64(31))
    return mixed


def sample(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Draws one token per row: int64 [K] for float32 logits [K, vocabulary].

    Temperature 0 takes the largest logit. Otherwise tokens are kept, likeliest first, by `min_p` and `top_k`, then
    down to the smallest set that holds `top_p` of what is left (Holtzman et al., 2020); one of them is drawn by
    inverting the cumulative distribution of softmax(logits / temperature).
    """
    tokens = logits.argmax(dim=-1)
    random = np.flatnonzero(rows.temperature > 0)
    if len(random) == 0:
        return tokens

    def column(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(logits.device).unsqueeze(1)

    index = torch.from_numpy(random).to(logits.device)
    scaled = logits[index] / column(rows.temperature[random])
    probabilities, order = torch.softmax(scaled, dim=-1).sort(dim=-1, descending=True, stable=True)
    top_k = column(np.where(rows.top_k[random] > 0, rows.top_k[random], logits.shape[-1]))
    rank = torch.arange(logits.shape[-1], device=logits.device)
    dropped = (rank >= top_k) | (probabilities < column(rows.min_p[random]) * probabilities[:, :1])
    probabilities = probabilities.masked_fill(dropped, 0.0).double()
    cumulative = probabilities.cumsum(dim=-1)
    top_p = column(rows.top_p[random].astype(np.float64))
    outside = (cumulative - probabilities >= top_p * cumulative[:, -1:]) & (top_p < 1)
    cumulative = probabilities.masked_fill(outside, 0.0).cumsum(dim=-1)
    noise = uniform(rows.seed[random], rows.choice[random], rows.position[random])
    target = column(noise) * cumulative[:, -1:]
    place = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)
    tokens[index] = order.gather(1, place).squeeze(1)
    return tokens


def logprobs(logits: torch.Tensor, tokens: torch.Tensor, rows: SamplingRows) -> list[pb.Logprobs]:
    """Returns log probabilities of the rows that want them, for logits as the model gives them."""
    wanting = np.flatnonzero(rows.logprobs >= 0)
    if len(wanting) == 0:
        return []
    index = torch.from_numpy(wanting).to(logits.device)
    everything = torch.log_softmax(logits[index], dim=-1)
    sampled = everything.gather(1, tokens[index].unsqueeze(1)).squeeze(1).tolist()
    most = min(int(rows.logprobs.max()), logits.shape[-1])
    values, best = (part.tolist() for part in everything.topk(most, dim=-1))
    return [
        pb.Logprobs(index=int(place), sampled=own, token=best[i][:count], logprob=values[i][:count])
        for i, (place, own, count) in enumerate(zip(wanting, sampled, rows.logprobs[wanting], strict=True))
    ]
