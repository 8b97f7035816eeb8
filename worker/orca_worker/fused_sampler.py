"""`FusedSampler`: a `Sampler` for CUDA, one launch for all rows (orca_kernels/cuda/sampling.cu).

It samples the tokens of `TorchSampler` on a CPU (docs/architecture.md, section 4). The host never waits for the device:
what it knows comes to the device with the iteration's own copy. Rows with penalties, a bias or banned tokens have a
history and a bias on the device, of one word per token of the vocabulary, which a second launch brings up to date with
the iteration's input tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from orca_kernels.cuda.sampling import BANS, BIAS, MOST_LOGPROBS, NOTE, SAMPLE_ROW, TOKENS, CudaSampling, read_logprobs
from orca_protos import engine_pb2 as pb

from orca_worker.errors import RankError
from orca_worker.logit_processing import needs_processing
from orca_worker.rows import IterationBatch
from orca_worker.sampler import Sampled
from orca_worker.sampling import SamplingRows

SAME = ("seed", "choice", "position", "temperature", "top_p", "min_p", "logprobs")
"""Fields of SAMPLE_ROW that are those of SamplingRows."""


@dataclass(frozen=True, slots=True)
class _Row:
    sampling: pb.Sampling
    prompt_length: int
    bans: bool
    history: torch.Tensor
    """[vocabulary] int32, see SAMPLE_ROW."""
    bias: torch.Tensor
    """[vocabulary] float32, [0] if the row has none."""


class FusedSampler:
    """Implements `Sampler`."""

    def __init__(self, kernels: CudaSampling, vocabulary: int, device: torch.device) -> None:
        self._kernels = kernels
        self._vocabulary = vocabulary
        self._device = device
        self._rows: dict[int, _Row] = {}
        """Rows that need more than the parameters of SamplingRows."""

    def parameters(self, iteration: pb.Iteration, rows: SamplingRows) -> Sequence[np.ndarray]:
        """See Sampler. The four arrays are the sampled rows, the notes of input tokens, those of admissions, and the
        tokens of the latter."""
        at_admission, tokens = self._admit(iteration)
        words = np.zeros(len(rows.seed), SAMPLE_ROW)
        for name in SAME:
            words[name] = getattr(rows, name)
        words["top_k"] = np.minimum(rows.top_k, self._vocabulary)
        if len(words) and words["logprobs"].max() > MOST_LOGPROBS:
            raise RankError(f"logprobs {words['logprobs'].max()} exceeds {MOST_LOGPROBS}")
        notes = []
        if self._rows:
            notes = self._note_inputs(iteration)
            sampling = (row for row, samples in zip(iteration.row, iteration.sample, strict=True) if samples)
            for place, number in enumerate(sampling):
                if (row := self._rows.get(number)) is not None:
                    self._fill_in(words[place], row, int(rows.position[place]))
        return _words(words), _words(np.array(notes, NOTE)), _words(np.array(at_admission, NOTE)), tokens

    def observe(self, iteration: pb.Iteration, batch: IterationBatch) -> None:
        """See Sampler."""
        _, notes, at_admission, tokens = batch.parameters
        self._kernels.note(tokens, at_admission, self._vocabulary)
        self._kernels.note(batch.tokens, notes, self._vocabulary)

    def takes_likeliest(self, iteration: pb.Iteration, batch: IterationBatch) -> bool:
        """See Sampler: never, because one launch samples all kinds of rows."""
        return False

    def sample(self, logits: torch.Tensor, iteration: pb.Iteration, batch: IterationBatch) -> Sampled:
        """See Sampler."""
        wanted = batch.sampling.logprobs
        results = self._kernels.sample(logits, batch.parameters[0], int(wanted.max()))

        def write(on_host: Sequence[torch.Tensor], result: pb.IterationResult) -> None:
            numbers = on_host[0].numpy()
            result.token.extend(numbers[0].tolist())
            for place in np.flatnonzero(wanted >= 0).tolist():
                own = read_logprobs(numbers, place, int(wanted[place]))
                result.logprobs.add(index=place, sampled=own.sampled, token=own.tokens, logprob=own.values)

        return Sampled(results[0], [results], write)

    def _admit(self, iteration: pb.Iteration) -> tuple[list[tuple[int, ...]], np.ndarray]:
        """Return notes for the new rows, and their tokens."""
        notes: list[tuple[int, ...]] = []
        parts: list[np.ndarray] = []
        start = 0
        for admission in iteration.admission:
            self._rows.pop(admission.row, None)
            if not needs_processing(admission):
                continue
            row = self._rows[admission.row] = self._begin(admission)
            bias = dict(zip(row.sampling.logit_bias.token, row.sampling.logit_bias.value, strict=True))
            computed, banned = admission.computed_token, admission.banned_token
            values = np.fromiter(bias.values(), np.float32).view(np.uint32)
            for kind, changed, tokens, more in (
                (TOKENS, row.history, computed, ()),
                (BANS, row.history, banned, ()),
                (BIAS, row.bias, bias, values),
            ):
                if tokens:
                    notes.append((changed.data_ptr(), kind, start, len(tokens), admission.prompt_length))
                    parts += [np.fromiter(tokens, np.int64), np.array(more, np.int64)]
                    start += len(tokens) + len(more)
        return notes, np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _begin(self, admission: pb.Admission) -> _Row:
        sampling, size = admission.sampling, self._vocabulary
        biased = size if sampling.logit_bias.token else 0
        return _Row(
            sampling,
            admission.prompt_length,
            bool(sampling.min_tokens and admission.banned_token),
            torch.zeros(size, dtype=torch.int32, device=self._device),
            torch.zeros(biased, device=self._device),
        )

    def _note_inputs(self, iteration: pb.Iteration) -> list[tuple[int, ...]]:
        """Return notes for the input tokens."""
        notes: list[tuple[int, ...]] = []
        start = 0
        for number, count, context in zip(iteration.row, iteration.num_tokens, iteration.context_length, strict=True):
            if (row := self._rows.get(number)) is not None:
                of_prompt = max(0, row.prompt_length - context)
                notes.append((row.history.data_ptr(), TOKENS, start, count, of_prompt))
            start += count
        return notes

    def _fill_in(self, words: np.void, row: _Row, position: int) -> None:
        """Write what a row has beyond SamplingRows; `position` is that of the token to sample."""
        words["history"] = row.history.data_ptr()
        words["bias"] = row.bias.data_ptr()
        words["repetition_penalty"] = row.sampling.repetition_penalty or 1.0
        words["frequency_penalty"] = row.sampling.frequency_penalty
        words["presence_penalty"] = row.sampling.presence_penalty
        words["bans"] = row.bans and position - row.prompt_length < row.sampling.min_tokens


def _words(structures: np.ndarray) -> np.ndarray:
    """Return structures [N] as int64 [N, words]."""
    return structures.view(np.int64).reshape(len(structures), structures.itemsize // 8)
