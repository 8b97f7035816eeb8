"""`Controller`: the gRPC service of a worker. No torch in this process.

Cold calls go to every rank and wait for all answers. On the hot path an Iteration is put into the
ranks' local queues and forwarded to the next controller at once, before any kernel has run. An Ack
goes back when this and every later partition has queued it; nobody waits for Acks but the streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import uuid
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from orca_protos import engine_pb2 as pb
from orca_protos.engine_pb2_grpc import WorkerServicer, WorkerStub
from orca_protos.wire import CHANNEL_OPTIONS, EPOCH_KEY

from orca_worker.cores import Processors, rank_setting
from orca_worker.epoch import Epoch
from orca_worker.errors import EpochError, ModelError, RankError, RankMemoryError
from orca_worker.model_config import load_digest, read_model_config
from orca_worker.rank_process import RANK_COMMAND, RankProcess

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 30.0
LOAD_SILENCE_SECONDS = 100.0
LEAVE_POLL_SECONDS = 0.05
MAX_DETAILS = 2000
"""Characters of a status message: it travels in an HTTP/2 header."""


class Controller(WorkerServicer):
    """One worker. `rank_command` starts a rank; tests put their own in front of it.

    `may_pin`: no other program's workers compute on this machine, so ranks may be pinned to cores (cores.py).
    """

    def __init__(self, store_host: str, rank_command: Sequence[str] = RANK_COMMAND, may_pin: bool = False) -> None:
        self.stopped = asyncio.Event()
        self.highest_epoch = 0
        self.num_streams = 0
        self._leaving = False
        self._store_host = store_host
        self._rank_command = rank_command
        self._may_pin = may_pin
        self._boot_id = uuid.uuid4().hex
        self._free_memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._ranks: list[RankProcess] = []
        self._load: pb.LoadRequest | None = None
        self._facts: pb.ModelFacts | None = None
        self._epoch: Epoch | None = None
        self._next_channel: grpc.aio.Channel | None = None
        self._formed = asyncio.Condition()

    @property
    def loaded(self) -> bool:
        """Whether every rank holds its weights."""
        return self._facts is not None

    async def leave(self, seconds: float) -> None:
        """Takes no new master from now on, and ends when the present one lets go, at the latest after `seconds`.

        A pod's master and workers get their signal together: the workers must outlast the master's drain.
        """
        self._leaving = True
        deadline = asyncio.get_running_loop().time() + seconds
        while self.num_streams and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(LEAVE_POLL_SECONDS)
        self.stopped.set()

    # -- cold ----------------------------------------------------------------------------------------

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.Description:
        """See engine.proto."""
        if self._leaving:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the worker is about to end")
        return pb.Description(
            boot_id=self._boot_id,
            pod_uid=os.environ.get("POD_UID", ""),
            version=version("orca-serving"),
            device=self._load.device if self._load else "",
            free_memory_bytes=self._free_memory,
            loaded_digest=self._facts.digest if self._facts else "",
            highest_epoch=self.highest_epoch,
            last_sequence=self._epoch.last_sequence if self._epoch else 0,
        )

    async def Load(self, request: pb.LoadRequest, context: Any) -> AsyncIterator[pb.LoadProgress]:
        """See engine.proto."""
        try:
            path = Path(request.model_path)
            read_model_config(path).check_fits(request.pipeline_parallel_size, request.tensor_parallel_size)
            if self._load != request or self._facts is None or self._facts.digest != load_digest(request):
                async for progress in self._load_ranks(request):
                    yield progress
            yield pb.LoadProgress(facts=self._facts)
        except (ModelError, RankError) as error:
            await self._end_ranks()
            await _abort(context, error)

    async def _load_ranks(self, request: pb.LoadRequest) -> AsyncIterator[pb.LoadProgress]:
        await self._end_ranks()
        environment = dict(request.environment)
        if request.socket_interface:
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                environment.setdefault(name, request.socket_interface)
        processors = Processors.of_this_process()
        for tensor_rank in range(request.tensor_parallel_size):
            setting = rank_setting(
                processors,
                request.first_device + tensor_rank,
                request.workers_on_host * request.tensor_parallel_size,
                self._may_pin and request.device == "cpu",
                {**os.environ, **environment},
            )
            logger.info("rank %d: %s", tensor_rank, setting.description)
            pinned = ("--cores", ",".join(map(str, setting.cores))) if setting.cores else ()
            # Results and timings are rank 0's to report; the others compute the same iteration.
            on_reply = self._on_reply if tensor_rank == 0 else _ignore
            self._ranks.append(
                await RankProcess.spawn(
                    tensor_rank,
                    self._store_host,
                    {**environment, **setting.environment},
                    (*self._rank_command, *pinned),
                    on_reply,
                    self._on_gone,
                    self._on_fault,
                )
            )
        for rank in self._ranks:
            rank.send(pb.RankCommand(load=request))
        for rank in self._ranks:
            while not (reply := await rank.answer(LOAD_SILENCE_SECONDS)).load.HasField("facts"):
                yield reply.load
            self._facts = reply.load.facts
        self._load = request

    async def Prepare(self, request: pb.PrepareRequest, context: Any) -> pb.Prepared:
        """See engine.proto."""
        if request.epoch <= self.highest_epoch:
            message = f"epoch {request.epoch} is over: {self.highest_epoch} was seen"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
        self.highest_epoch = request.epoch
        await self._leave_epoch(f"epoch {request.epoch} is being formed")
        try:
            replies = await self._ask(pb.RankCommand(prepare=request), ANSWER_SECONDS)
        except (ModelError, RankError, EpochError) as error:
            await self._end_ranks()  # one that does not leave its old epoch: the next Load starts it anew
            await _abort(context, error)
        return replies[0].prepared

    async def Form(self, request: pb.FormRequest, context: Any) -> pb.Formed:
        """See engine.proto."""
        if request.epoch != self.highest_epoch:
            message = f"epoch {request.epoch} was not prepared: {self.highest_epoch} is the last"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
        seconds = ANSWER_SECONDS + request.group_timeout_ms / 1000
        await self._ask_or_abort(context, pb.RankCommand(form=request), seconds)
        next_hop = None
        if request.next_hop:
            self._next_channel = grpc.aio.insecure_channel(request.next_hop, options=CHANNEL_OPTIONS)
            metadata = ((EPOCH_KEY, str(request.epoch)),)
            next_hop = WorkerStub(self._next_channel).Run(  # type: ignore[no-untyped-call]
                wait_for_ready=True, metadata=metadata
            )
        async with self._formed:
            self._epoch = Epoch(request.epoch, next_hop, alone=request.world_size == len(self._ranks))
            self._formed.notify_all()
        return pb.Formed()

    async def Warmup(self, request: pb.WarmupRequest, context: Any) -> pb.WarmedUp:
        """See engine.proto."""
        seconds = context.time_remaining() or ANSWER_SECONDS
        replies = await self._ask_or_abort(context, pb.RankCommand(warmup=request), seconds)
        return min((reply.warmed_up for reply in replies), key=lambda reply: reply.num_blocks)

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.Allocated:
        """See engine.proto."""
        await self._ask_or_abort(context, pb.RankCommand(allocate=request), ANSWER_SECONDS)
        return pb.Allocated()

    async def Shutdown(self, request: pb.ShutdownRequest, context: Any) -> pb.ShutdownAccepted:
        """See engine.proto."""
        self.stopped.set()
        return pb.ShutdownAccepted()

    # -- hot -----------------------------------------------------------------------------------------

    async def Run(self, request_iterator: Any, context: Any) -> None:
        """See engine.proto. Reads iterations on this task and writes Acks on another."""
        acks: asyncio.Task[None] | None = None
        self.num_streams += 1
        try:
            epoch = await self._formed_epoch(dict(context.invocation_metadata()).get(EPOCH_KEY, ""))
            acks = asyncio.create_task(_write_acks(epoch, context))
            with epoch.until_over():
                while (iteration := await context.read()) is not grpc.aio.EOF:
                    epoch.accept(iteration)
                    command = pb.RankCommand(iteration=iteration.SerializeToString())
                    for rank in self._ranks:
                        rank.send(command)
                    await epoch.forward(iteration)
        except (EpochError, RankError) as error:
            await _abort(context, error)
        finally:
            self.num_streams -= 1
            if acks is not None:
                acks.cancel()

    async def Results(self, request: pb.ResultsRequest, context: Any) -> AsyncIterator[pb.IterationResult]:
        """See engine.proto."""
        self.num_streams += 1
        try:
            epoch = await self._formed_epoch(str(request.epoch))
            while True:
                yield await epoch.result()
        except (EpochError, RankError) as error:
            await _abort(context, error)
        finally:
            self.num_streams -= 1

    # -- inside --------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Ends epoch and ranks."""
        await self._leave_epoch("the worker ends")
        await self._end_ranks()

    async def _formed_epoch(self, number: str) -> Epoch:
        """Waits for the epoch to be formed here: a neighbour may have been faster. Raises EpochError."""
        if not number.isdecimal() or int(number) != self.highest_epoch:
            raise EpochError(f"epoch {number or 'none'} is not the current one, {self.highest_epoch}")
        async with self._formed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._formed.wait_for(lambda: self._epoch is not None), ANSWER_SECONDS)
        if self._epoch is None or self._epoch.number != int(number):
            raise EpochError(f"epoch {number} was not formed")
        return self._epoch

    def _on_reply(self, reply: pb.RankReply) -> None:
        if self._epoch is not None:
            self._epoch.reply(reply)

    def _on_gone(self) -> None:
        if self._epoch is not None:
            self._epoch.expect_own_fault()

    def _on_fault(self, message: str) -> None:
        self._facts = None
        if self._epoch is not None:
            self._epoch.end(message)

    async def _ask(self, command: pb.RankCommand, timeout: float) -> list[pb.RankReply]:
        """Asks every rank; raises ModelError, RankError, or EpochError if there is none."""
        if not self._ranks:
            raise EpochError("nothing is loaded")
        return list(await asyncio.gather(*(rank.ask(command, timeout) for rank in self._ranks)))

    async def _ask_or_abort(self, context: Any, command: pb.RankCommand, timeout: float) -> list[pb.RankReply]:
        try:
            return await self._ask(command, timeout)
        except (ModelError, RankError, EpochError) as error:
            await _abort(context, error)
            raise  # unreachable: abort raises

    async def _leave_epoch(self, reason: str) -> None:
        if self._epoch is not None:
            self._epoch.end(reason)
        self._epoch = None
        if self._next_channel is not None:
            await self._next_channel.close()
        self._next_channel = None

    async def _end_ranks(self) -> None:
        ranks, self._ranks, self._facts, self._load = self._ranks, [], None, None
        await asyncio.gather(*(rank.end() for rank in ranks))


async def _write_acks(epoch: Epoch, context: Any) -> None:
    while True:
        await context.write(await epoch.acks.get())


async def _abort(context: Any, error: Exception) -> None:
    """Ends a call with the status that belongs to `error`."""
    code = {
        ModelError: grpc.StatusCode.INVALID_ARGUMENT,
        RankError: grpc.StatusCode.ABORTED,
        RankMemoryError: grpc.StatusCode.RESOURCE_EXHAUSTED,
        EpochError: grpc.StatusCode.FAILED_PRECONDITION,
    }[type(error)]
    await context.abort(code, str(error)[:MAX_DETAILS])


def _ignore(_: pb.RankReply) -> None:
    pass
