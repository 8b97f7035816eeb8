"""`CurrentEpoch`: a controller's current epoch, from `prepare` over `begin` to `leave`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc.aio
from orca_protos import deadlines
from orca_protos import engine_pb2 as pb
from orca_protos.engine_pb2_grpc import WorkerStub
from orca_protos.tls import TlsFolder, open_channel
from orca_protos.wire import HIGHEST_EPOCH

from orca_worker.epoch import Epoch
from orca_worker.errors import EpochError
from orca_worker.rendezvous import Rendezvous


class CurrentEpoch:
    """The epoch prepared last: its number, rendezvous, channels and, once formed, its `Epoch`.

    `tls`: certificates for calls to other workers; None: plain text.
    """

    def __init__(self, tls: TlsFolder | None) -> None:
        self.highest = 0
        self.rendezvous = Rendezvous(0)
        self.running: Epoch | None = None
        """None before `begin` and after `leave`."""
        self._master = ""
        """Identity of the master that has prepared the epoch."""
        self._last_formed = 0
        self._tls = tls
        self._channels: list[grpc.aio.Channel] = []
        self._formed = asyncio.Condition()

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last iteration, 0 before the first."""
        return self.running.last_sequence if self.running else 0

    @property
    def serving_master(self) -> str:
        """Identity of the master whose stream of iterations is open here, "" without one."""
        return self._master if self.running is not None and self.running.serves_master else ""

    async def prepare(self, number: int, master: str = "") -> None:
        """Leave the previous epoch and prepare epoch `number`; raise EpochError if it is too low or too high."""
        if number <= self.highest:
            raise EpochError(f"epoch {number} is over: the current epoch is {self.highest}")
        if number > HIGHEST_EPOCH:
            raise EpochError(f"epoch {number} exceeds the maximum, {HIGHEST_EPOCH}")
        self.highest, self._master = number, master
        await self.leave(f"epoch {number} is being formed")
        self.rendezvous = Rendezvous(number)

    def check_prepared(self, number: int) -> None:
        """Raise EpochError unless `number` is the epoch prepared last."""
        if number != self.highest:
            raise EpochError(f"epoch {number} was not prepared: the current epoch is {self.highest}")

    def check_unformed(self, number: int) -> None:
        """Raise EpochError unless `number` is the epoch prepared last and not formed yet."""
        self.check_prepared(number)
        if number == self._last_formed:
            raise EpochError(f"epoch {number} was formed already")

    async def begin(self, epoch: Epoch) -> None:
        """Set the formed epoch and wake the streams that wait for it."""
        async with self._formed:
            self.running, self._last_formed = epoch, epoch.number
            self._formed.notify_all()

    async def formed(self, number: str) -> Epoch:
        """Wait until epoch `number` is formed here: other controllers may be faster. Raises EpochError."""
        if number != str(self.highest):
            raise EpochError(f"epoch {number or 'none'} is not the current one, {self.highest}")
        async with self._formed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deadlines.NEIGHBOUR_FORMED_SECONDS):
                    await self._formed.wait_for(lambda: self.running is not None)
        if self.running is None or number != str(self.running.number):
            raise EpochError(f"epoch {number} was not formed")
        return self.running

    def dial(self, address: str) -> Any:
        """Return the stub of another worker for the rest of this epoch."""
        self._channels.append(open_channel(address, self._tls))
        return WorkerStub(self._channels[-1])  # type: ignore[no-untyped-call]

    async def ask_rendezvous(self, request: pb.RendezvousRequest) -> pb.RendezvousReply:
        """Answer a rank's rendezvous request; see Rendezvous.ask."""
        return await self.rendezvous.ask(request)

    def reply(self, reply: pb.RankReply) -> None:
        """Pass a rank's reply to the running epoch; drop it if there is none."""
        if self.running is not None:
            self.running.reply(reply)

    def report(self, fault: pb.Fault) -> None:
        """Pass a rank's fault to the running epoch; drop faults of other epochs."""
        if self.running is not None and self.running.number == fault.epoch:
            self.running.report(fault)

    async def leave(self, reason: str) -> None:
        """End the epoch, its rendezvous and its channels."""
        if self.running is not None:
            self.running.leave(reason)
        self.running = None
        await self.rendezvous.close()
        channels, self._channels = self._channels, []
        for channel in channels:
            await channel.close()
