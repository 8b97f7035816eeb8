"""`Rendezvous`: the key-value store of one epoch, over which gloo and NCCL exchange the ranks' addresses.

A rank sends a request to its controller over their socket pair. The controller of partition 0 hosts the values; other
controllers forward requests to it over gRPC. So no store listens on a port, and certificates decide who takes part.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from orca_protos import engine_pb2 as pb

from orca_worker.errors import RendezvousError

MAX_KEY_LENGTH = 1024
MAX_BYTES = 32 << 20
"""Total size of an epoch's keys and values. gloo stores about 200 bytes for every pair of ranks."""
MAX_WAITING = 1024
"""Requests of all ranks that wait for missing keys: each rank waits for one key at a time."""
KEY_OVERHEAD_BYTES = 200
MARGIN_SECONDS = 5.0
"""Added to the timeout of a forwarded request, so that the host's error, which has the missing key, arrives first."""


class Rendezvous:
    """The values of `epoch`, or the way to their host. Each epoch has a new instance, closed at its end."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._values: dict[str, bytes] = {}
        self._num_bytes = 0
        self._num_waiting = 0
        self._changed = asyncio.Condition()
        self._closed = False
        self._host: Any = None

    def pass_on(self, host: Any) -> None:
        """Let `ask` forward requests to `host`, the stub of the controller that hosts the values."""
        self._host = host

    async def ask(self, request: pb.RendezvousRequest) -> pb.RendezvousReply:
        """Answer a rank of this worker; an error is returned in the reply's field `error`."""
        try:
            if self._host is None:
                return await self.exchange(request)
            return await self._ask_host(request)
        except RendezvousError as error:
            return pb.RendezvousReply(error=str(error))
        except grpc.aio.AioRpcError as error:
            return pb.RendezvousReply(error=f"partition 0: {error.details() or error.code().name}")

    async def exchange(self, request: pb.RendezvousRequest) -> pb.RendezvousReply:
        """Set the key to the request's value, add the request's addend to the key, or wait for the key's value.

        The value of a key that is added to is a decimal number in ASCII, 0 if the key is not set; the reply has the
        sum. Raises RendezvousError.
        """
        if request.epoch != self._epoch or self._closed:
            raise _over(request.epoch)
        if len(request.key) > MAX_KEY_LENGTH:
            raise RendezvousError(f"a key of {len(request.key)} characters: at most {MAX_KEY_LENGTH} are allowed")
        if request.HasField("value"):
            await self._set(request.key, request.value)
            return pb.RendezvousReply()
        if request.HasField("addend"):
            return pb.RendezvousReply(value=await self._add(request.key, request.addend))
        return pb.RendezvousReply(value=await self._get(request.key, request.timeout_ms / 1000))

    async def close(self) -> None:
        """End all local waits. Forwarded requests end when the caller closes the channel to the host."""
        async with self._changed:
            self._closed = True
            self._values.clear()
            self._changed.notify_all()

    async def _ask_host(self, request: pb.RendezvousRequest) -> pb.RendezvousReply:
        if self._closed:
            raise _over(request.epoch)
        seconds = request.timeout_ms / 1000 + MARGIN_SECONDS
        try:
            reply: pb.RendezvousReply = await self._host.Rendezvous(request, timeout=seconds)
        except asyncio.CancelledError as error:
            # A closed channel cancels its calls. The rank needs a reply: it cannot execute Prepare while it waits.
            if self._closed and not _is_cancelled():
                raise _over(request.epoch) from error
            raise
        except grpc.aio.UsageError as error:  # the channel is closed
            raise _over(request.epoch) from error
        return reply

    async def _set(self, key: str, value: bytes) -> None:
        async with self._changed:
            self._keep(key, value)
            self._changed.notify_all()

    async def _add(self, key: str, addend: int) -> bytes:
        async with self._changed:
            try:
                total = str(int(self._values.get(key, b"0")) + addend).encode()
            except ValueError as error:
                raise RendezvousError(f"the value of {key[:100]!r} is no number") from error
            self._keep(key, total)
            self._changed.notify_all()
        return total

    def _keep(self, key: str, value: bytes) -> None:
        added = (
            len(value) - len(self._values[key]) if key in self._values else len(key) + len(value) + KEY_OVERHEAD_BYTES
        )
        if self._num_bytes + added > MAX_BYTES:
            raise RendezvousError(f"the keys and values of an epoch would take more than {MAX_BYTES >> 20} MiB")
        self._num_bytes += added
        self._values[key] = value

    async def _get(self, key: str, seconds: float) -> bytes:
        if key in self._values:
            return self._values[key]
        if self._num_waiting >= MAX_WAITING:
            raise RendezvousError(f"more than {MAX_WAITING} requests are waiting")
        self._num_waiting += 1
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._closed or key in self._values)
        except TimeoutError as error:
            raise RendezvousError(f"timeout: no rank set {key[:100]!r} within {seconds:.0f} s") from error
        finally:
            self._num_waiting -= 1
        if self._closed:
            raise _over(self._epoch)
        return self._values[key]


def _over(epoch: int) -> RendezvousError:
    return RendezvousError(f"the rendezvous of epoch {epoch} is over")


def _is_cancelled() -> bool:
    """Return True if the current task itself is being cancelled, not only the call that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
