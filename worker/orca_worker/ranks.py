"""`Ranks`: the rank processes of one worker. Every command goes to all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import Any

from orca_protos import engine_pb2 as pb
from orca_protos.deadlines import COLD_FAULTS_SECONDS, LOAD_SILENCE, PING_SECONDS, UNLOAD_SECONDS
from orca_protos.together import together

from orca_worker.errors import FaultError, ModelError, kind_of
from orca_worker.rank_process import PING, RankProcess
from orca_worker.rank_start import RANK_COMMAND, RankPlaces, RankStart
from orca_worker.rank_starter import RankStarter

logger = logging.getLogger(__name__)


def rank_starts(
    request: pb.LoadRequest, command: Sequence[str] = RANK_COMMAND, may_pin: bool = False
) -> list[RankStart]:
    """Return the start settings of each rank of a load. `may_pin`: ranks may be pinned to cores (cores.py)."""
    places = RankPlaces(
        request.tensor_parallel_size,
        request.first_device,
        request.workers_on_host * request.tensor_parallel_size,
        request.device,
        request.communication_backend,
        request.socket_interface,
    )
    return places.starts(request.environment, command, may_pin)


class Ranks:
    """The T rank processes of a partition, made by `spawn` or `keep`; empty before the first load."""

    def __init__(self, starts: Sequence[RankStart] = (), processes: Iterable[RankProcess] = ()) -> None:
        self.starts = starts
        self._processes = list(processes)

    def __len__(self) -> int:
        return len(self._processes)

    @property
    def loaded(self) -> bool:
        """True if every process has loaded its part of the model, and none has failed since."""
        return bool(self._processes) and all(process.loaded for process in self._processes)

    @property
    def failed(self) -> bool:
        """True if a process has ended or is being killed."""
        return any(process.failed for process in self._processes)

    @classmethod
    async def spawn(cls, starts: Sequence[RankStart], partition: int, starter: RankStarter) -> Ranks:
        """Start a process for each of `starts`; raise FaultError if one cannot be started."""
        ranks = cls(starts)
        try:
            for tensor_rank, start in enumerate(starts):
                ranks._processes.append(await starter.start(tensor_rank, start))
            await starter.end_early()
        except OSError as error:
            await ranks.end()
            raise _not_started(error, partition) from error
        except BaseException:
            await ranks.end()
            raise
        return ranks

    async def ping(self) -> None:
        """Ask every loaded process for a sign of life; a process that gives none within PING_SECONDS is killed."""
        pings = (process.ask(PING, PING_SECONDS) for process in self._processes if process.loaded)
        await asyncio.gather(*pings, return_exceptions=True)

    async def replace_failed(self, partition: int, starter: RankStarter) -> None:
        """Start a new process for each that has failed; raise FaultError if one cannot be started."""
        for tensor_rank, process in enumerate(list(self._processes)):
            if process.failed:
                logger.warning("rank %d is replaced; the worker's other ranks keep their weights", tensor_rank)
                await asyncio.shield(process.end())
                try:
                    started = await starter.start(tensor_rank, self.starts[tensor_rank])
                except OSError as error:
                    raise _not_started(error, partition) from error
                if process not in self._processes:  # `end` was called meanwhile
                    await started.end()
                    message = "the ranks were ended while one was replaced"
                    raise FaultError(pb.Fault(message=message, kind=pb.FAULT_KIND_CAUSE, partition=partition))
                self._processes[tensor_rank] = started

    async def keep(self, starts: Sequence[RankStart]) -> Ranks | None:
        """Unload the processes and return them as new Ranks, if they were started with `starts` and none has failed.

        Otherwise return None; the caller must then call `end`.
        """
        if not self._processes or self.starts != starts:
            return None
        try:
            await self.ask(pb.RankCommand(unload=pb.UnloadRequest()), UNLOAD_SECONDS)
        except (ModelError, FaultError) as error:
            logger.info("starting new rank processes, because the present ones cannot be reused: %s", error)
            return None
        kept = Ranks(starts, self._processes)
        self._processes = []
        return kept

    def send(self, command: pb.RankCommand) -> None:
        """Put a command into every rank's local queue. Never blocks."""
        for process in self._processes:
            process.send(command)

    async def ask(self, command: pb.RankCommand, timeout: float) -> list[pb.RankReply]:
        """Send a command to every rank and return the replies.

        Raises ModelError or FaultError; of several errors the cause, if a rank reports it within COLD_FAULTS_SECONDS
        of a consequence.
        """
        return await _together(process.ask(command, timeout) for process in self._processes)

    async def load(self, request: pb.LoadRequest, digest: str) -> AsyncIterator[pb.LoadProgress]:
        """Load the partition into the processes that have not loaded a model.

        Yields the bytes read so far, the mean of these processes, and the facts at the end. Raises like `ask`, and
        ModelError if `digest`, that of the files before, is not the one after each process has read them.
        """
        if self.loaded:
            yield pb.LoadProgress(facts=self._processes[0].loaded)
            return
        empty = [process for process in self._processes if process.loaded is None]
        progress: asyncio.Queue[pb.LoadProgress | None] = asyncio.Queue()
        loaded = [0] * len(empty)

        async def follow(index: int, process: RankProcess) -> pb.ModelFacts:
            command = pb.RankCommand(load=request)
            async for reply in process.answers(command, LOAD_SILENCE.worker):
                if not reply.load.HasField("facts"):
                    loaded[index] = reply.load.loaded_bytes
                    progress.put_nowait(pb.LoadProgress(loaded_bytes=sum(loaded) // len(loaded)))
            return reply.load.facts

        loading = asyncio.create_task(_together(follow(*entry) for entry in enumerate(empty)))
        loading.add_done_callback(lambda _: progress.put_nowait(None))
        try:
            while (message := await progress.get()) is not None:
                yield message
            facts = await loading
            if any(each.digest != digest for each in facts):
                raise ModelError(f"{request.model_path}: files of the model changed while they were read")
            yield pb.LoadProgress(facts=facts[0])
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)

    async def end(self) -> None:
        """End every rank process within a bounded time."""
        processes, self._processes = self._processes, []
        await asyncio.gather(*(process.end() for process in processes))


async def _together(calls: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    return await together(
        calls,
        _is_conclusive,
        COLD_FAULTS_SECONDS,
        lambda errors: min(errors, key=lambda error: not _is_conclusive(error)),
    )


def _is_conclusive(error: BaseException) -> bool:
    """Return True if no other error can be the cause of this one."""
    return kind_of(error) != pb.FAULT_KIND_CONSEQUENCE


def _not_started(error: OSError, partition: int) -> FaultError:
    message = f"cannot start a rank process: {error}"
    return FaultError(pb.Fault(message=message, kind=pb.FAULT_KIND_CAUSE, partition=partition))
