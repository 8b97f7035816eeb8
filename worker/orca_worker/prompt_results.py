"""Results of prompts: the rows of the head's input that they need, and their start (prompt_logprobs.py, pooling.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from orca_kernels.device_copies import to_device
from orca_protos import engine_pb2 as pb

from orca_worker.device_copies import HostCopies
from orca_worker.models.family import ModelPartition
from orca_worker.pooling import start_pooling
from orca_worker.prompt_logprobs import start_prompt_logprobs


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows of the head's input in an iteration with results of prompts; the tensors are int64, on the device."""

    sampling: torch.Tensor
    """[K] rows of the tokens that sample."""
    scored: torch.Tensor
    """[P] rows after which a prompt's token has its log probability, of all requests."""
    targets: torch.Tensor
    """[P] these tokens of the prompts."""
    pooled: Sequence[slice]
    """Rows of each entry of `Iteration.pooled` (pooling.py)."""


def num_read(iteration: pb.Iteration, num_tokens: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Return [R] how many of each request's last input tokens the head reads; `num_tokens` [R], `samples` [R] bool."""
    counts: np.ndarray = samples.astype(np.int64)
    firsts = [(entry.index, entry.first) for entry in iteration.prompt]
    firsts += [(entry.index, entry.first) for entry in iteration.pooled]
    for index, first in firsts:
        counts[index] = num_tokens[index] - first
    return counts


def prompt_rows(iteration: pb.Iteration, counts: np.ndarray, samples: np.ndarray, device: torch.device) -> PromptRows:
    """Return the rows of an iteration whose head reads `counts` [R] tokens of the requests (`num_read`)."""
    ends = counts.cumsum()
    starts = ends - counts
    scored = [starts[entry.index] + np.arange(len(entry.token)) for entry in iteration.prompt]
    targets = [np.fromiter(entry.token, np.int64) for entry in iteration.prompt]
    none = np.empty(0, np.int64)
    sampling, positions, tokens = to_device(
        device, (ends - 1)[samples], np.concatenate([none, *scored]), np.concatenate([none, *targets])
    )
    pooled = [slice(int(starts[entry.index]), int(ends[entry.index])) for entry in iteration.pooled]
    return PromptRows(sampling, positions, tokens, pooled)


def start_prompt_results(
    model: ModelPartition,
    hidden: torch.Tensor,
    rows: PromptRows,
    iteration: pb.Iteration,
    vocabulary: int,
    copies: HostCopies | None,
) -> list[Callable[[pb.IterationResult], None]]:
    """Compute the results of prompts from the head's input [count, H]; return functions that wait and write them.

    `copies`: None on ranks whose results the master does not need.
    """
    writes = []
    if iteration.prompt:
        writes.append(
            start_prompt_logprobs(model.logits, hidden, rows.scored, rows.targets, iteration, vocabulary, copies)
        )
    if iteration.pooled and copies is not None:  # every rank has the same activations
        writes.append(start_pooling(model.final_norm, hidden, rows.pooled, iteration, copies))
    return writes
