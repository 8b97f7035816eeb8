"""`Ranks`: the rank processes of one worker, which get every command together and answer it together."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any

from orca_protos import engine_pb2 as pb
from orca_protos.deadlines import COLD_FAULTS_SECONDS, LOAD_SILENCE
from orca_protos.together import together

from orca_worker.cores import Processors, rank_setting
from orca_worker.errors import FaultError, kind_of
from orca_worker.rank_process import RANK_COMMAND, Question, RankProcess

logger = logging.getLogger(__name__)


class Ranks:
    """The T ranks of a partition, made by `spawn`; without any before the first load."""

    def __init__(self) -> None:
        self._processes: list[RankProcess] = []

    def __len__(self) -> int:
        return len(self._processes)

    @classmethod
    async def spawn(
        cls,
        request: pb.LoadRequest,
        on_reply: Callable[[pb.RankReply], None],
        on_fault: Callable[[pb.Fault], None],
        on_question: Question,
        command: Sequence[str] = RANK_COMMAND,
        may_pin: bool = False,
    ) -> Ranks:
        """Starts the ranks that `request` needs; raises FaultError if a process cannot be started.

        `on_reply`, `on_fault` and `on_question`: see RankProcess. `may_pin`: ranks may be pinned to cores (cores.py).
        """
        environment = dict(request.environment)
        if request.socket_interface:
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                environment.setdefault(name, request.socket_interface)
        processors = Processors.of_this_process()
        ranks = cls()
        try:
            for tensor_rank in range(request.tensor_parallel_size):
                setting = rank_setting(
                    processors,
                    request.first_device + tensor_rank,
                    request.workers_on_host * request.tensor_parallel_size,
                    may_pin and request.device == "cpu",
                    {**os.environ, **environment},
                )
                logger.info("rank %d: %s", tensor_rank, setting.description)
                pinned = ("--cores", ",".join(map(str, setting.cores))) if setting.cores else ()
                ranks._processes.append(
                    await RankProcess.spawn(
                        request.partition,
                        tensor_rank,
                        {**environment, **setting.environment},
                        (*command, *pinned),
                        # Results and timings are rank 0's to report; the others compute the same iteration.
                        on_reply if tensor_rank == 0 else _ignore,
                        on_fault,
                        on_question,
                    )
                )
        except OSError as error:
            await ranks.end()
            message = f"a rank cannot be started: {error}"
            fault = pb.Fault(message=message, kind=pb.FAULT_KIND_CAUSE, partition=request.partition)
            raise FaultError(fault) from error
        except BaseException:
            await ranks.end()
            raise
        return ranks

    def send(self, command: pb.RankCommand) -> None:
        """Puts a command into every rank's local queue. Never blocks."""
        for process in self._processes:
            process.send(command)

    async def ask(self, command: pb.RankCommand, timeout: float) -> list[pb.RankReply]:
        """Asks every rank and returns their answers.

        Raises ModelError, or FaultError: the cause if a rank reports it within COLD_FAULTS_SECONDS of a consequence.
        """
        return await _together(process.ask(command, timeout) for process in self._processes)

    async def load(self, request: pb.LoadRequest) -> AsyncIterator[pb.LoadProgress]:
        """Loads the partition; yields the bytes read so far by all ranks, and the facts at the end. Raises as `ask`."""
        progress: asyncio.Queue[pb.LoadProgress | None] = asyncio.Queue()
        loaded = [0] * len(self._processes)

        async def follow(tensor_rank: int, process: RankProcess) -> pb.ModelFacts:
            command = pb.RankCommand(load=request)
            async for reply in process.answers(command, LOAD_SILENCE.worker):
                if not reply.load.HasField("facts"):
                    loaded[tensor_rank] = reply.load.loaded_bytes
                    progress.put_nowait(pb.LoadProgress(loaded_bytes=sum(loaded)))
            return reply.load.facts

        loading = asyncio.create_task(_together(follow(*entry) for entry in enumerate(self._processes)))
        loading.add_done_callback(lambda _: progress.put_nowait(None))
        try:
            while (message := await progress.get()) is not None:
                yield message
            yield pb.LoadProgress(facts=(await loading)[0])
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)

    async def end(self) -> None:
        """Ends every rank within a bound."""
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
    """Whether no other error can be the cause of this one."""
    return kind_of(error) != pb.FAULT_KIND_CONSEQUENCE


def _ignore(_: pb.RankReply) -> None:
    pass
