"""Sampling, vectorised over the requests of an iteration; noise is counter-based.

The noise of a token is a function of (seed, choice, position) and of nothing else: not of the batch,
the row, the worker or a restart (docs/contracts.md, section 5). So a replay draws the same token.
"""

from __future__ import annotations

import numpy as np
import torch

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

    Temperature 0 takes the largest logit. Otherwise the token is found by inverting the cumulative
    distribution of softmax(logits / temperature), cut to the smallest set of likeliest tokens whose
    probability reaches top_p (Holtzman et al., 2020).
    """
    tokens = logits.argmax(dim=-1)
    random = np.flatnonzero(rows.temperature > 0)
    if len(random) == 0:
        return tokens
    device = logits.device
    noise = uniform(rows.seed[random], rows.choice[random], rows.position[random])
    index = torch.from_numpy(random).to(device)
    temperature = torch.from_numpy(rows.temperature[random]).to(device).unsqueeze(1)
    top_p = torch.from_numpy(rows.top_p[random]).to(device).unsqueeze(1)
    probabilities, order = torch.softmax(logits[index] / temperature, dim=-1).sort(dim=-1, descending=True, stable=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.masked_fill((before >= top_p) & (top_p < 1), 0.0).double()
    cumulative = probabilities.cumsum(dim=-1)
    target = torch.from_numpy(noise).to(device).unsqueeze(1) * cumulative[:, -1:]
    place = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)
    tokens[index] = order.gather(1, place).squeeze(1)
    return tokens
