"""`Rendezvous`: where the ranks of one epoch leave and find each other's addresses.

gloo and NCCL exchange addresses through a store of keys and values. Ours travels where commands do: a rank asks its
controller over their socket pair, and the controller answers from its own values (partition 0 hosts them) or asks the
host's controller over gRPC. So no store listens on a port, and who may take part is a matter of certificates.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from orca_protos import engine_pb2 as pb

from orca_worker.errors import RendezvousError

MAX_KEY_LENGTH = 1024
MAX_BYTES = 32 << 20
"""Keys and values of an epoch together. gloo leaves about 200 bytes for every pair of ranks."""
MAX_WAITING = 1024
"""Waits for keys that are not set yet, of all ranks together: each rank waits for one key at a time."""
KEY_OVERHEAD_BYTES = 200
MARGIN_SECONDS = 5.0
"""How much longer than the host a controller waits, so that the host's error, which names the missing key, arrives."""


class Rendezvous:
    """The values of `epoch` at their host; made anew for every epoch, and closed with it."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._values: dict[str, bytes] = {}
        self._num_bytes = 0
        self._num_waiting = 0
        self._changed = asyncio.Condition()
        self._closed = False
        self._host: Any = None

    def pass_on(self, host: Any) -> None:
        """From now on `ask` passes questions on to `host`, the stub of the controller that has the values."""
        self._host = host

    async def ask(self, request: pb.RendezvousRequest) -> pb.RendezvousReply:
        """Answers a rank of this worker; an error is returned in the reply's field `error`."""
        try:
            if self._host is None:
                return await self.exchange(request)
            return await self._ask_host(request)
        except RendezvousError as error:
            return pb.RendezvousReply(error=str(error))
        except grpc.aio.AioRpcError as error:
            return pb.RendezvousReply(error=f"partition 0: {error.details() or error.code().name}")

    async def exchange(self, request: pb.RendezvousRequest) -> pb.RendezvousReply:
        """Set the key if the request has a value, else waits for the value. Raises RendezvousError."""
        if request.epoch != self._epoch or self._closed:
            raise _over(request.epoch)
        if len(request.key) > MAX_KEY_LENGTH:
            raise RendezvousError(f"a key of {len(request.key)} characters: at most {MAX_KEY_LENGTH} are allowed")
        if request.HasField("value"):
            await self._set(request.key, request.value)
            return pb.RendezvousReply()
        return pb.RendezvousReply(value=await self._get(request.key, request.timeout_ms / 1000))

    async def close(self) -> None:
        """End every wait here. Questions that were passed on end when the caller closes the channel to the host."""
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
            # A channel cancels its calls when it is closed. Without an answer the rank would wait on, deaf to Prepare.
            if self._closed and not _is_cancelled():
                raise _over(request.epoch) from error
            raise
        except grpc.aio.UsageError as error:  # the channel is closed
            raise _over(request.epoch) from error
        return reply

    async def _set(self, key: str, value: bytes) -> None:
        added = (
            len(value) - len(self._values[key]) if key in self._values else len(key) + len(value) + KEY_OVERHEAD_BYTES
        )
        if self._num_bytes + added > MAX_BYTES:
            raise RendezvousError(f"the keys and values of an epoch would take more than {MAX_BYTES >> 20} MiB")
        async with self._changed:
            self._num_bytes += added
            self._values[key] = value
            self._changed.notify_all()

    async def _get(self, key: str, seconds: float) -> bytes:
        if key in self._values:
            return self._values[key]
        if self._num_waiting >= MAX_WAITING:
            raise RendezvousError(f"more than {MAX_WAITING} questions wait")
        self._num_waiting += 1
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._closed or key in self._values)
        except TimeoutError as error:
            raise RendezvousError(f"nobody set {key[:100]!r} within {seconds:.0f} s") from error
        finally:
            self._num_waiting -= 1
        if self._closed:
            raise _over(self._epoch)
        return self._values[key]


def _over(epoch: int) -> RendezvousError:
    return RendezvousError(f"the rendezvous of epoch {epoch} is over")


def _is_cancelled() -> bool:
    """Whether the current task itself is being cancelled, not only the call that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
