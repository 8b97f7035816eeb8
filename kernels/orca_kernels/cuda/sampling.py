"""`CudaSampling`: tokens and log probabilities of all rows of an iteration in one launch of sampling.cu.

The host prepares parameters as NumPy structures of 64-bit words, which come to the device with the iteration's other
numbers. A row's history and bias are tensors of the caller, which parameters refer to by address. No method waits for
the device.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import torch

from orca_kernels.cuda.modules import Kernel, Launcher

SOURCE = "sampling.cu"
THREADS = 1024
MOST_LOGPROBS = THREADS
"""Number of likeliest tokens of a row that the kernel can sort."""
TOKENS, BANS, BIAS = range(3)
"""Kinds of a NOTE: tokens of a sequence; tokens to ban; tokens whose float32 biases are the words after them."""

SAMPLE_ROW = np.dtype(
    [
        ("seed", np.uint64),
        ("choice", np.uint64),
        ("position", np.uint64),
        ("history", np.uint64),
        ("bias", np.uint64),
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("repetition_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("top_k", np.int32),
        ("logprobs", np.int32),
        ("bans", np.int32),
        ("unused", np.int32),
    ]
)
"""Parameters of a row that samples. `history`, `bias`: addresses of [vocabulary] int32 and float32, 0 for none;
`top_k` 0: no limit; `logprobs`: number of likeliest tokens, -1 for no log probabilities; `bans`: 1 if banned tokens of
the history get no probability."""
NOTE = np.dtype([(name, np.int64) for name in ("changed", "kind", "start", "count", "of_prompt")])
"""A change of the history or bias at address `changed`, by `count` tokens from `start` on."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log probabilities of one row, read from the results on the host."""

    sampled: float
    tokens: list[int]
    values: list[float]


class CudaSampling:
    """Launches the kernels of sampling.cu."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def note(self, tokens: torch.Tensor, notes: torch.Tensor, vocabulary: int) -> None:
        """Apply notes [N, words of NOTE] int64, whose tokens are in `tokens` int64, both on the device."""
        if len(notes):
            kernel = Kernel(SOURCE, "orca_note", torch.float32)
            self._launcher.launch(kernel, (len(notes), 1, 1), THREADS, (tokens, notes, ctypes.c_longlong(vocabulary)))

    def sample(self, logits: torch.Tensor, rows: torch.Tensor, logprobs: int) -> torch.Tensor:
        """Return results int64 on the device: the tokens [1, K], or [2 + logprobs, K] with log probabilities.

        `logits` [K, vocabulary], `rows` [K, words of SAMPLE_ROW] int64, `logprobs` the largest number of a row.
        """
        count, vocabulary = logits.shape
        lines = 1 if logprobs < 0 else 2 + min(logprobs, vocabulary)
        results = torch.empty((lines, count), dtype=torch.int64, device=logits.device)
        arguments = (logits.contiguous(), rows, results, ctypes.c_longlong(vocabulary), ctypes.c_longlong(count))
        self._launcher.launch(Kernel(SOURCE, "orca_sample", logits.dtype), (count, 1, 1), THREADS, arguments)
        return results


def read_logprobs(results: np.ndarray, row: int, logprobs: int) -> Logprobs:
    """Return the log probabilities of a row that asks for `logprobs` likeliest tokens, from results int64 on the host.

    There are fewer if fewer tokens of the vocabulary are allowed, and none for logits that are not numbers.
    """
    words = np.ascontiguousarray(results[1 : 2 + logprobs, row])
    words = words[words != -1]
    values = words.astype(np.uint32).view(np.float32)
    possible = values[1:] != -np.inf
    return Logprobs(float(values[0]), (words[1:][possible] >> 32).tolist(), values[1:][possible].tolist())
