"""`DraftModel`: a smaller model on the ranks of the last partition, which drafts tokens for the next iteration.

Its K/V blocks have the numbers of the model's own, in pools of its own, so that the master's ledger holds for both. Its
tokens are sampled with the parameters and the noise of the model's: at every temperature the two models then often
sample the same token, and the master accepts exactly those (a coupling by common noise: Daliri et al., 2024,
https://arxiv.org/abs/2408.07978).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from orca_contract.drafting import MOST_CAUGHT_UP
from orca_protos import engine_pb2 as pb

from orca_worker.device_clock import DeviceClock
from orca_worker.device_copies import HostCopies
from orca_worker.draft_rows import DraftRows
from orca_worker.errors import ModelError
from orca_worker.load_request import draft_request
from orca_worker.loaded_partition import LoadedPartition, load_partition
from orca_worker.model_config import read_model_config
from orca_worker.recorded_layers import RecordedLayers
from orca_worker.rows import RowTable
from orca_worker.sampler import Sampler

MOST_PADDING = 1024
"""Largest difference of two vocabularies that are the same but for unused tokens at the end."""
MOST_UNREAD = 64
"""Iterations whose tokens stay on the device while nobody wants drafts: the host does not wait for the latest."""


class DraftModel:
    """The draft model of a Load request beside its last partition, `target`; see Stage for the other parameters.

    Raises ModelError if it does not fit.
    """

    def __init__(self, request: pb.LoadRequest, target: LoadedPartition, on_read: Callable[[int], None]) -> None:
        wanted = draft_request(request)
        config = read_model_config(Path(wanted.model_path))
        if config.embeds_only:
            raise ModelError(
                f"--speculative-model {wanted.model_path}: it has no head and drafts no tokens: choose another model"
            )
        if abs(config.vocabulary_size - target.config.vocabulary_size) > MOST_PADDING:
            raise ModelError(
                f"--speculative-model {wanted.model_path}: it has {config.vocabulary_size} tokens and the model "
                f"{target.config.vocabulary_size}: choose a model with the same tokens"
            )
        wanted.dtype = str(target.dtype).removeprefix("torch.")
        wanted.max_model_len = min(target.max_model_len, config.max_positions)
        self._loaded = load_partition(wanted, target.group.rank, on_read, target.group)
        self.layers = RecordedLayers(self._loaded)
        self._vocabulary = target.config.vocabulary_size
        self._copies = HostCopies(target.device)
        self._most_tokens = 0
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        self._rows = DraftRows(self._loaded.max_model_len)
        self._unread: deque[tuple[pb.Iteration, Callable[[], list[torch.Tensor]]]] = deque()

    def run_largest(self, max_tokens: int, grow: Callable[[int], None], on_cpu: bool) -> None:
        """Run the largest iteration, which has a part of the model's `max_tokens`: see RecordedLayers.run_largest."""
        self._most_tokens = min(max_tokens, MOST_CAUGHT_UP)
        self.layers.run_largest(self._most_tokens, grow, on_cpu)

    def note(self, iteration: pb.Iteration, sampled: torch.Tensor) -> None:
        """Note an iteration of the model, and the tokens [K] that it sampled; every rank has them."""
        self._unread.append((iteration, self._copies.start(sampled)))
        while len(self._unread) > (0 if iteration.num_drafts else MOST_UNREAD):
            earlier, tokens = self._unread.popleft()
            self._rows.note(earlier, tokens()[0].tolist())

    def draft(
        self, iteration: pb.Iteration, table: RowTable, sampler: Sampler, clock: DeviceClock
    ) -> Callable[[pb.IterationResult], None]:
        """Draft tokens after a noted iteration; return a function that writes them to its result.

        `table` and `sampler` are those of the model.
        """
        started = clock.mark()
        following, incomplete = self._rows.catch_up(iteration, self._most_tokens)
        drafts, num_caught_up = incomplete, len(following.token)
        while following.row:
            sampled = self._sample(following, table, sampler)
            following, incomplete = self._rows.advance(incomplete, sampled)
        ended = clock.mark()

        def write(result: pb.IterationResult) -> None:
            result.drafting_ns, result.num_caught_up = ended() - started(), num_caught_up
            for draft in drafts:
                result.drafted.add(index=draft.index, token=draft.tokens)

        return write

    def _sample(self, iteration: pb.Iteration, table: RowTable, sampler: Sampler) -> list[int]:
        """Compute an iteration of the draft model; return the sampled tokens.

        The model's tokens that the draft model lacks are replaced by its last token.
        """
        is_first = self._loaded.group.rank == 0  # only rank 0 has all columns of the logits
        batch = table.batch(iteration, sampler.parameters) if is_first else table.batch(iteration)
        known = batch.tokens.clamp(max=self._loaded.config.vocabulary_size - 1)
        output = self.layers.run(replace(batch, tokens=known, adapters=None), None)  # adapters are the model's
        if not len(batch.rows):
            return []
        if is_first and sampler.takes_likeliest(iteration, batch):
            likeliest = self._loaded.model.likeliest(output)  # None with more ranks than one
            if likeliest is not None and (likeliest < self._vocabulary).all():
                return likeliest.tolist()
        logits = self._loaded.model.logits(output)
        if is_first:
            tokens = sampler.sample(self._fit(logits), iteration, batch).tokens
        else:
            tokens = torch.zeros(len(batch.rows), dtype=torch.int64, device=self._loaded.device)
        return self._loaded.group.from_first(tokens).tolist()

    def _fit(self, logits: torch.Tensor) -> torch.Tensor:
        """Cut or extend logits [K, tokens] to the model's vocabulary; a token that they lack is never sampled."""
        missing = self._vocabulary - logits.shape[1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return logits[:, : self._vocabulary].contiguous()
