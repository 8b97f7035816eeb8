"""`PartitionLoader`: loads a worker's partition into its rank processes, and only into new ones after a failure.

The modules that check a model import pydantic. They are imported by the first load, so that early ranks start before,
and import torch while the master is not there yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from orca_protos import engine_pb2 as pb
from orca_protos.deadlines import ADAPTER_FILES_SECONDS

from orca_worker.adapter_reading import AdapterReading
from orca_worker.errors import EpochError, FaultError, ModelError
from orca_worker.rank_starter import RankStarter
from orca_worker.ranks import Ranks, rank_starts


class PartitionLoader:
    """The present `ranks` of a worker, and the `request` and `facts` of their model (None: no model).

    `rank_command`, `may_pin`: see Controller. `leave_epoch` ends the current epoch, because of a reason.
    """

    def __init__(
        self,
        starter: RankStarter,
        rank_command: Sequence[str],
        may_pin: bool,
        leave_epoch: Callable[[str], Awaitable[None]],
    ) -> None:
        self.ranks = Ranks()
        self.request: pb.LoadRequest | None = None
        self.facts: pb.ModelFacts | None = None
        self._starter = starter
        self._rank_command = rank_command
        self._may_pin = may_pin
        self._leave_epoch = leave_epoch
        self._replacing = asyncio.Lock()
        self._adapter_reading = AdapterReading()

    async def load(self, request: pb.LoadRequest) -> AsyncIterator[pb.LoadProgress]:
        """Load a partition; yield progress, and the facts at the end.

        Ranks that have loaded the same files for an equal request keep them. Raises ModelError, which ends all ranks,
        FaultError, or EpochError if another load has taken over the processes meanwhile.
        """
        from orca_worker.load_request import check_request, quantization
        from orca_worker.model_check import check_model
        from orca_worker.model_config import load_digest
        from orca_worker.model_identity import compared_files

        check_request(request)
        path = Path(request.model_path)
        try:
            # In a thread, so that other calls do not wait: reading the headers of many weights takes seconds.
            model = await asyncio.to_thread(
                check_model,
                path,
                request.pipeline_parallel_size,
                request.tensor_parallel_size,
                request.max_model_len,
                range(request.partition, request.partition + 1),
                quantization(request),
                request.device,
                request.adapter,
            )
            num_bytes = model.num_bytes + await asyncio.to_thread(_check_draft_model, request)
            digest = await asyncio.to_thread(load_digest, request)
            files: Mapping[str, str]
            if self.request == request and self.facts is not None and self.facts.digest == digest:
                files, ranks = self.facts.file_digest, await self._living_ranks(request)
            else:
                files = await asyncio.to_thread(compared_files, request, model.files, model.own_files)
                ranks = await self._empty_ranks(request)
            async for progress in self._load(ranks, request, digest, files):
                progress.total_bytes = num_bytes
                yield progress
            yield pb.LoadProgress(facts=self.facts)
        except (ModelError, FaultError) as error:
            if isinstance(error, ModelError) or self.facts is None:
                await self.end()
            raise
        except OSError as error:  # the model's files changed during the check
            await self.end()
            raise ModelError(f"{request.model_path}: {error}") from error

    async def adapter_digest(self, adapter: pb.RuntimeAdapter) -> str:
        """Check the files of an adapter for the loaded model, and return their digest.

        Raises ModelError or EpochError, and FaultError if an adapter that other workers have, with a digest, cannot be
        read in time: it is no worse for a slow storage. Reads on a thread, so that ranks, whose iterations wait, find
        the files in memory.
        """
        from orca_worker.runtime_adapters import checked_digest

        if self.request is None:
            raise EpochError("nothing is loaded")
        if not adapter.digest:
            self._adapter_reading.check_free()
        try:
            return await self._adapter_reading.run(partial(checked_digest, adapter, self.request))
        except TimeoutError as error:
            message = f"the files of adapter {adapter.name!r} could not be read within {ADAPTER_FILES_SECONDS:.0f} s"
            if not adapter.digest:
                raise ModelError(message) from error
            kind, partition = pb.FAULT_KIND_CAUSE, self.request.partition
            raise FaultError(pb.Fault(message=message, kind=kind, partition=partition, outside=True)) from error

    async def end(self) -> None:
        """End every rank, even if the calling task is cancelled."""
        self.facts = self.request = None
        await asyncio.shield(self.ranks.end())

    async def _living_ranks(self, request: pb.LoadRequest) -> Ranks:
        """Return the present ranks, with a new process for each that has failed or gives no sign of life."""
        ranks = self.ranks
        await ranks.ping()
        if ranks.failed:
            async with self._replacing:
                await self._leave_epoch("a rank is being replaced")
                await ranks.replace_failed(request.partition, self._starter)
        return ranks

    async def _empty_ranks(self, request: pb.LoadRequest) -> Ranks:
        """Return ranks without a model: the present processes, unloaded, or new ones."""
        async with self._replacing:
            # No other call may use the processes while they are unloaded.
            previous, self.ranks = self.ranks, Ranks()
            try:
                await self._leave_epoch("another model is being loaded")
                self.facts = self.request = None
                starts = rank_starts(request, self._rank_command, self._may_pin)
                kept = await previous.keep(starts)
                if kept is not None:
                    self.ranks = kept
            finally:
                await asyncio.shield(previous.end())  # no-op if `keep` has taken over the processes
            if kept is None:
                self.ranks = await Ranks.spawn(starts, request.partition, self._starter)
            return self.ranks

    async def _load(
        self, ranks: Ranks, request: pb.LoadRequest, digest: str, files: Mapping[str, str]
    ) -> AsyncIterator[pb.LoadProgress]:
        """Load into the processes of `ranks` that are empty; yield progress, set request and facts at the end.

        `files`: ModelFacts.file_digest.
        """
        if self.ranks is not ranks:
            raise EpochError("another load has begun")
        try:
            async for progress in ranks.load(request, digest):
                if not progress.HasField("facts"):
                    yield progress
        except (ModelError, FaultError) as error:
            if self.ranks is not ranks:
                raise EpochError("another load has begun") from error
            raise
        if self.ranks is not ranks:
            raise EpochError("another load has begun")
        progress.facts.file_digest.update(files)
        self.request, self.facts = request, progress.facts


def _check_draft_model(request: pb.LoadRequest) -> int:
    """Check the draft model, if the worker loads one; return the bytes of its tensors. Raises ModelError."""
    from orca_worker.load_request import draft_request, has_draft_model, quantization
    from orca_worker.model_check import check_model

    if not has_draft_model(request):
        return 0
    wanted = draft_request(request)
    try:
        return check_model(
            Path(wanted.model_path), 1, wanted.tensor_parallel_size, 0, range(1), quantization(wanted), wanted.device
        ).num_bytes
    except ModelError as error:
        raise ModelError(f"--speculative-model: {error}") from error
