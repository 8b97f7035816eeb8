"""`Controller`: the gRPC service of a worker. Its process imports no torch.

Cold calls send a command to every rank and wait for all replies. On the hot path the controller puts an Iteration into
the ranks' local queues and forwards it to the next controller at once, before any kernel runs. The Ack is sent when
this and all later partitions have queued the Iteration; execution does not wait for Acks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
from orca_protos import deadlines, faults
from orca_protos import engine_pb2 as pb
from orca_protos.engine_pb2_grpc import WorkerServicer
from orca_protos.tls import TlsFolder
from orca_protos.wire import EPOCH_KEY, WIRE_VERSION

from orca_worker.abort import Aborting
from orca_worker.current_epoch import CurrentEpoch
from orca_worker.epoch import Epoch
from orca_worker.errors import EpochError, FaultError, RendezvousError
from orca_worker.partition_loader import PartitionLoader
from orca_worker.rank_start import RANK_COMMAND, RankStart, StartedRank
from orca_worker.rank_starter import RankStarter
from orca_worker.ranks import Ranks

LEAVE_POLL_SECONDS = 0.05


class Controller(WorkerServicer):
    """One worker. `rank_command`: the command that starts a rank, replaced by some tests.

    `keeps_spare`: an idle rank process replaces a rank that fails (rank_starter.py).
    `may_pin`: only this program's workers compute on this machine, so ranks may be pinned to cores (cores.py).
    `tls`: certificates for calls to other workers; None: plain text.
    """

    def __init__(
        self,
        rank_command: Sequence[str] = RANK_COMMAND,
        may_pin: bool = False,
        tls: TlsFolder | None = None,
        keeps_spare: bool = False,
    ) -> None:
        self.stopped = asyncio.Event()
        self.epoch = CurrentEpoch(tls)
        self.num_streams = 0
        self.leaving = False
        """True from the signal to end on."""
        self._boot_id = os.urandom(16).hex()
        self._free_memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._starter = RankStarter(self.epoch.reply, self.epoch.report, self.epoch.ask_rendezvous, keeps_spare)
        self._loader = PartitionLoader(self._starter, rank_command, may_pin, self.epoch.leave)

    @property
    def loaded(self) -> bool:
        """True if all ranks have loaded their weights."""
        return self._ranks.loaded

    async def leave(self, seconds: float) -> None:
        """Refuse new masters, announce the departure to the present master, and stop when it closes its streams.

        Iterations are computed until then, at most for `seconds`. The master decides: it moves the requests to another
        pipeline at once, or lets them finish here, if Kubernetes signals master and workers at the same time.
        """
        self.leaving = True
        if self.epoch.running is not None:
            self.epoch.running.announce_departure(pb.Departure(partition=self._partition))
        deadline = asyncio.get_running_loop().time() + seconds
        while self.num_streams and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(LEAVE_POLL_SECONDS)
        self.stopped.set()

    async def adopt_early(self, started: Sequence[tuple[RankStart, StartedRank]]) -> None:
        """Take over ranks that were started before the first Load."""
        await self._starter.adopt_early(started)

    # -- cold ----------------------------------------------------------------------------------------

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.Description:
        """See engine.proto."""
        if self.leaving:
            leaving = pb.Fault(message="the worker is shutting down", kind=pb.FAULT_KIND_CAUSE)
            await context.abort(grpc.StatusCode.UNAVAILABLE, leaving.message, faults.to_metadata(leaving))
        from importlib.metadata import version  # here, because they delay the start

        from orca_contract.message import VERSION  # imports pydantic

        return pb.Description(
            boot_id=self._boot_id,
            pod_uid=os.environ.get("POD_UID", ""),
            version=version("orca-serving"),
            device=self._loader.request.device if self._loader.request else "",
            free_memory_bytes=self._free_memory,
            loaded_digest=self._loader.facts.digest if self._loader.facts and self.loaded else "",
            highest_epoch=self.epoch.highest,
            last_sequence=self.epoch.last_sequence,
            contract_version=VERSION,
            wire_version=WIRE_VERSION,
            serving_master=self.epoch.serving_master,
        )

    async def Load(self, request: pb.LoadRequest, context: Any) -> AsyncIterator[pb.LoadProgress]:
        """See engine.proto."""
        async with self._aborting(context):
            async for progress in self._loader.load(request):
                yield progress

    async def Prepare(self, request: pb.PrepareRequest, context: Any) -> pb.Prepared:
        """See engine.proto."""
        async with self._aborting(context):
            await self.epoch.prepare(request.epoch, request.master)
            replies = await self._ask(pb.RankCommand(prepare=request), deadlines.PREPARE.worker)
            return replies[0].prepared

    async def Form(self, request: pb.FormRequest, context: Any) -> pb.Formed:
        """See engine.proto."""
        async with self._aborting(context):
            self.epoch.check_unformed(request.epoch)
            if request.rendezvous_host:
                self.epoch.rendezvous.pass_on(self.epoch.dial(request.rendezvous_host))
            ranks = self._ranks
            seconds = deadlines.form(request.group_timeout_ms / 1000).worker
            await self._ask(pb.RankCommand(form=request), seconds)
            self.epoch.check_prepared(request.epoch)  # another Prepare may have come while the ranks formed
            if self._ranks is not ranks:
                raise EpochError("another load has begun")
            next_hop = None
            if request.next_hop:
                metadata = ((EPOCH_KEY, str(request.epoch)),)
                next_hop = self.epoch.dial(request.next_hop).Run(wait_for_ready=True, metadata=metadata)
            alone = request.world_size == len(self._ranks)
            epoch = Epoch(request.epoch, self._partition, next_hop, alone)
            if self.leaving:  # the signal came during the formation, while a stream waited for its end
                epoch.announce_departure(pb.Departure(partition=self._partition))
            await self.epoch.begin(epoch)
            return pb.Formed()

    async def Rendezvous(self, request: pb.RendezvousRequest, context: Any) -> pb.RendezvousReply:
        """See engine.proto."""
        async with self._aborting(context):
            try:
                return await self.epoch.rendezvous.exchange(request)
            except RendezvousError as error:
                raise EpochError(str(error)) from error

    async def Warmup(self, request: pb.WarmupRequest, context: Any) -> pb.WarmedUp:
        """See engine.proto."""
        async with self._aborting(context):
            self._check_epoch(request.epoch)
            seconds = deadlines.warmup(request.timeout_ms / 1000).worker
            replies = await self._ask(pb.RankCommand(warmup=request), seconds)
            return min((reply.warmed_up for reply in replies), key=lambda reply: reply.num_blocks)

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.Allocated:
        """See engine.proto."""
        async with self._aborting(context):
            self._check_epoch(request.epoch)
            await self._ask(pb.RankCommand(allocate=request), deadlines.ALLOCATE.worker)
            if self._ranks.starts:
                self._starter.prepare_spare(self._ranks.starts[0])
            return pb.Allocated()

    async def ChangeAdapters(self, request: pb.ChangeAdaptersRequest, context: Any) -> pb.AdaptersChanged:
        """See engine.proto."""
        async with self._aborting(context):
            self.epoch.check_prepared(request.epoch)
            if request.HasField("loaded"):
                request.loaded.digest = await self._loader.adapter_digest(request.loaded)
                self.epoch.check_prepared(request.epoch)  # another Prepare may have come meanwhile
            seconds = deadlines.change_adapters(request.timeout_ms / 1000).worker
            await self._ask(pb.RankCommand(change_adapters=request), seconds)
            return pb.AdaptersChanged(digest=request.loaded.digest)

    async def Shutdown(self, request: pb.ShutdownRequest, context: Any) -> pb.ShutdownAccepted:
        """See engine.proto."""
        self.stopped.set()
        return pb.ShutdownAccepted()

    # -- hot -----------------------------------------------------------------------------------------

    async def Run(self, request_iterator: Any, context: Any) -> None:
        """See engine.proto. Reads iterations on this task and writes Acks on another."""
        with self._counted_stream():
            async with self._aborting(context):
                epoch = await self.epoch.formed(dict(context.invocation_metadata()).get(EPOCH_KEY, ""))
                try:
                    # Not with the first Ack: while that is sent, gRPC could not abort the call, which would never end.
                    await context.send_initial_metadata(())
                    await self._relay(epoch, context)
                finally:
                    epoch.lose_caller()

    async def Results(self, request: pb.ResultsRequest, context: Any) -> AsyncIterator[pb.IterationResult]:
        """See engine.proto."""
        with self._counted_stream():
            async with self._aborting(context):
                epoch = await self.epoch.formed(str(request.epoch))
                while True:
                    yield await epoch.result()

    # -- internal ------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the epoch and the ranks."""
        await self.epoch.leave("the worker ends")
        await self._loader.end()
        await self._starter.end()

    @property
    def _ranks(self) -> Ranks:
        return self._loader.ranks

    @property
    def _partition(self) -> int:
        return self._loader.request.partition if self._loader.request else 0

    async def _relay(self, epoch: Epoch, context: Any) -> None:
        """Queue and forward each iteration until the caller closes its stream; raise EpochError or FaultError."""
        acks = asyncio.create_task(_write_acks(epoch, context))
        try:
            with epoch.until_over():
                while (iteration := await context.read()) is not grpc.aio.EOF:
                    if iteration.HasField("masks"):
                        epoch.accept_masks(iteration)
                    else:
                        epoch.accept(iteration)
                    self._ranks.send(pb.RankCommand(iteration=iteration.SerializeToString()))
                    await epoch.forward(iteration)
        except FaultError as error:
            epoch.end(error.fault)
            raise
        finally:
            acks.cancel()

    def _check_epoch(self, number: int) -> None:
        """Raise EpochError for a late call of an earlier master; masters of older versions send no epoch (0)."""
        if number:
            self.epoch.check_prepared(number)

    async def _ask(self, command: pb.RankCommand, timeout: float) -> list[pb.RankReply]:
        """Send a command to every rank and return the replies; raise ModelError, FaultError or EpochError."""
        if not self._ranks:
            raise EpochError("nothing is loaded")
        return await self._ranks.ask(command, timeout)

    def _aborting(self, context: Any) -> Aborting:
        return Aborting(context, lambda: (self.epoch.highest, self._partition))

    @contextmanager
    def _counted_stream(self) -> Iterator[None]:
        """Count a stream, because `leave` waits for its end."""
        self.num_streams += 1
        try:
            yield
        finally:
            self.num_streams -= 1


async def _write_acks(epoch: Epoch, context: Any) -> None:
    while True:
        await context.write(await epoch.acks.get())
