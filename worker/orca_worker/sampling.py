"""Sampling, vectorised over the requests of an iteration, with counter-based noise.

The noise of a token depends only on (seed, choice, position), not on the batch, the row, the worker or a restart
(docs/contracts.md, section 5). So a recomputation samples the same token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from orca_kernels.device_copies import to_device
from orca_protos import engine_pb2 as pb

FEW = (128, 4096)
"""Numbers of most likely tokens to search for the kept ones, before sorting the whole vocabulary."""
NUMBERS_AT_ONCE = 1 << 21
"""Logits of the rows that are computed together: the intermediate tensors hold up to 40 bytes per logit."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


SAMPLING_ROW = np.dtype(
    [
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("top_k", np.int64),
        ("min_p", np.float32),
        ("logprobs", np.int64),
        ("seed", np.uint64),
        ("choice", np.uint64),
    ]
)
"""Sampling parameters of a row, under the names of `Sampling` in protos/engine.proto."""
_NAMES = SAMPLING_ROW.names or ()
_OPTIONAL = {field.name for field in pb.Sampling.DESCRIPTOR.fields if field.has_presence and field.message_type is None}


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Sampling parameters of one iteration; arrays [K], K = requests that sample."""

    temperature: np.ndarray
    top_p: np.ndarray
    top_k: np.ndarray
    """0: no limit."""
    min_p: np.ndarray
    logprobs: np.ndarray
    """Number of log probabilities beside the sampled token's, -1 for none at all."""
    seed: np.ndarray
    choice: np.ndarray
    position: np.ndarray
    """uint64 position of the token to sample."""


def sampling_row(sampling: pb.Sampling) -> tuple[float, ...]:
    """Return the values of SAMPLING_ROW in a request's message, -1 for an absent optional number."""
    return tuple(getattr(sampling, name) if name not in _OPTIONAL or sampling.HasField(name) else -1 for name in _NAMES)


def sampling_rows(rows: np.ndarray, position: np.ndarray) -> SamplingRows:
    """Return the parameters of requests: `rows` [K] of SAMPLING_ROW, and the positions [K] of their next tokens."""
    return SamplingRows(**{name: rows[name] for name in _NAMES}, position=position.astype(np.uint64))


def uniform(seed: np.ndarray, choice: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Return float64 noise in [0, 1), of the same shape as the three uint64 arrays.

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
    """Sample one token per row: int64 [K] for float32 logits [K, vocabulary].

    Temperature 0 takes the largest logit. Otherwise one of the kept tokens is drawn, by inverting the cumulative
    distribution of softmax(logits / temperature) in the order of token ids.
    """
    tokens = _likeliest(logits)
    random = np.flatnonzero(rows.temperature > 0)
    at_once = max(1, NUMBERS_AT_ONCE // logits.shape[-1])
    for first in range(0, len(random), at_once):
        _draw(logits, rows, random[first : first + at_once], tokens)
    return tokens


def _likeliest(logits: torch.Tensor) -> torch.Tensor:
    """Return the token with the largest logit of each row, of equal ones the first: int64 [K]."""
    if logits.device.type == "cpu":  # numpy uses vector instructions: torch takes six to eight times as long
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def _draw(logits: torch.Tensor, rows: SamplingRows, random: np.ndarray, tokens: torch.Tensor) -> None:
    """Draw the tokens of the rows `random` into `tokens` [K]."""
    (index,) = to_device(logits.device, random)
    probabilities = torch.softmax(logits[index] / _column(rows.temperature[random], logits.device), dim=-1)
    cuts = (rows.top_k[random] > 0) | (rows.top_p[random] < 1) | (rows.min_p[random] > 0)
    few = _few_kept(probabilities, rows, random)
    if few is not None:
        probabilities = few[1]
    elif cuts.any():
        (cut,) = to_device(logits.device, np.flatnonzero(cuts))
        whole = probabilities[cut]
        probabilities[cut] = whole.masked_fill(whole < _least_kept(whole, rows, random[cuts]), 0.0)
    cumulative = probabilities.double().cumsum(dim=-1)
    total = cumulative[:, -1:].clone()
    noise = _column(uniform(rows.seed[random], rows.choice[random], rows.position[random]), logits.device)
    target = torch.minimum(noise * total, torch.nextafter(total, torch.zeros_like(total)))
    place = torch.searchsorted(cumulative, target, right=True)
    place.clamp_(max=cumulative.shape[-1] - 1)  # out of range only for NaN logits
    tokens[index] = (place if few is None else few[0].gather(1, place)).squeeze(1)


def _few_kept(
    probabilities: torch.Tensor, rows: SamplingRows, which: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the likeliest tokens int64 [K, F], ascending, among them all kept ones, and their probabilities, 0 for
    those that are not kept. None if a row may keep a token beyond them.

    Their cumulative distribution is that of `probabilities` [K, vocabulary] without the places at which it does not
    grow, bit for bit, and much shorter.
    """
    if probabilities.shape[-1] <= FEW[0] or not ((rows.top_k[which] > 0) & (rows.top_k[which] < FEW[0])).all():
        return None
    likeliest, tokens = probabilities.topk(FEW[0])
    last = likeliest.gather(1, _column(rows.top_k[which] - 1, probabilities.device))
    if not (likeliest[:, -1:] < last).all():  # tokens that are as likely as the last kept one are kept, too
        return None
    tokens, order = tokens.sort(dim=1)
    few = likeliest.gather(1, order)
    return tokens, few.masked_fill(few < _least_kept(few, rows, which), 0.0)


def _least_kept(probabilities: torch.Tensor, rows: SamplingRows, which: np.ndarray) -> torch.Tensor:
    """Return the smallest kept probability [K, 1] of `probabilities` [K, vocabulary]; tokens equal to it are kept.

    `min_p` and `top_k` apply first, then `top_p`: the smallest set of the most likely tokens with that part of the
    remaining probability (Holtzman et al., 2020). The kept tokens are nearly always few, and sorting a whole
    vocabulary takes as long as an iteration.
    """
    device, vocabulary = probabilities.device, probabilities.shape[-1]
    top_k = _column(np.minimum(np.where(rows.top_k[which] > 0, rows.top_k[which], vocabulary), vocabulary), device)
    top_p = _column(rows.top_p[which].astype(np.float64), device)
    unbound = top_p >= 1
    for size in (*(few for few in FEW if few < vocabulary), vocabulary):
        likeliest = probabilities.topk(size).values
        last = likeliest.gather(1, (top_k - 1).clamp(max=size - 1))
        least = torch.where(top_k < vocabulary, last, torch.zeros_like(last))
        least = torch.maximum(least, _column(rows.min_p[which], device) * likeliest[:, :1])
        # By cumsum, which adds each row in order: the order of torch's sum depends on the number of rows and threads.
        kept = probabilities.masked_fill(probabilities < least, 0.0).double().cumsum(dim=-1)[:, -1:]
        target = top_p * kept
        before = likeliest.double().cumsum(dim=-1) < target
        place = before.sum(dim=-1, keepdim=True)
        known = (unbound | (place < size)) & ((top_k <= size) | (top_k == vocabulary))
        if known.all():
            break
    nucleus = likeliest.gather(1, place.clamp(max=size - 1))
    return torch.where(unbound, least, torch.maximum(least, nucleus))


def _column(values: np.ndarray, device: torch.device) -> torch.Tensor:
    return to_device(device, values)[0].unsqueeze(1)
