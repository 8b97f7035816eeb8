"""`WorkerConnection`: the gRPC channel to one worker controller, with deadlines and typed errors.

Unary calls have deadlines (orca_protos/deadlines.py). The streams `Run` and `Results` have none; gRPC keepalive
(orca_protos/wire.py) and the stall timeout (supervisor.py) bound them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

import grpc
import grpc.aio
from orca_protos import deadlines, faults
from orca_protos import engine_pb2 as pb
from orca_protos.engine_pb2_grpc import WorkerStub
from orca_protos.tls import TlsFolder, open_channel
from orca_protos.wire import EPOCH_KEY

from orca_master.engine.faults import Evidence, WorkerLostError, lost_worker
from orca_master.errors import ConfigurationError

Reply = TypeVar("Reply")
Arguments = ParamSpec("Arguments")

REASON_SECONDS = 2.0
"""Deadline of the second Describe call, which determines why a worker was unreachable."""


class WorkerConnection:
    """Connection to one controller, with TLS or in plain text. Create and use it on one event loop."""

    def __init__(self, address: str, tls: TlsFolder | None = None) -> None:
        self.address = address
        self._channel = open_channel(address, tls)
        self._stub: Any = WorkerStub(self._channel)  # type: ignore[no-untyped-call]

    async def describe(self, timeout: float) -> pb.Description:
        """Return the worker's description; wait up to `timeout` seconds for the worker."""
        try:
            description: pb.Description = await self._stub.Describe(
                pb.DescribeRequest(), timeout=timeout, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise self._translate(error) from error
            # An expired deadline gives no reason; a call without wait_for_ready does (e.g. a rejected certificate).
            description = await self._call(self._stub.Describe, pb.DescribeRequest(), timeout=REASON_SECONDS)
        return description

    async def load(self, request: pb.LoadRequest, on_progress: Callable[[int, int], None]) -> pb.ModelFacts:
        """Load a partition; raise ConfigurationError for an unsuitable model, WorkerLostError without progress.

        `on_progress` gets the bytes of weights read so far, and the bytes of the partition.
        """
        stream = self._stub.Load(request)
        while True:
            try:
                async with asyncio.timeout(deadlines.LOAD_SILENCE.master):
                    progress = await self._call(stream.read)
            except TimeoutError as error:
                raise WorkerLostError(
                    f"worker {self.address} reported no loading progress for {deadlines.LOAD_SILENCE.master:.0f} s",
                    worker=self.address,
                ) from error
            if progress is grpc.aio.EOF:
                raise WorkerLostError(f"worker {self.address} ended Load without a result", worker=self.address)
            if progress.HasField("facts"):
                facts: pb.ModelFacts = progress.facts
                return facts
            if progress.total_bytes:  # else the worker is of an older version
                on_progress(progress.loaded_bytes, progress.total_bytes)

    async def prepare(self, request: pb.PrepareRequest) -> pb.Prepared:
        """Discard older epochs on the worker."""
        return await self._call(self._stub.Prepare, request, timeout=deadlines.PREPARE.master)

    async def form(self, request: pb.FormRequest) -> pb.Formed:
        """Form the process groups of the epoch; call Form on all workers of the pipeline concurrently."""
        timeout = deadlines.form(request.group_timeout_ms / 1000).master
        return await self._call(self._stub.Form, request, timeout=timeout)

    async def warmup(self, request: pb.WarmupRequest) -> pb.WarmedUp:
        """Run an iteration of the maximum size once."""
        timeout = deadlines.warmup(request.timeout_ms / 1000).master
        return await self._call(self._stub.Warmup, request, timeout=timeout)

    async def allocate(self, request: pb.AllocateRequest) -> pb.Allocated:
        """Allocate the block pools."""
        return await self._call(self._stub.Allocate, request, timeout=deadlines.ALLOCATE.master)

    async def change_adapters(self, request: pb.ChangeAdaptersRequest) -> pb.AdaptersChanged:
        """Remove adapters and load one; raise ConfigurationError for files that are refused."""
        timeout = deadlines.ADAPTER_FILES_SECONDS + deadlines.change_adapters(request.timeout_ms / 1000).master
        return await self._call(self._stub.ChangeAdapters, request, timeout=timeout)

    async def shutdown(self, reason: str) -> None:
        """Shut the worker down; ignore a worker that cannot be reached."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._stub.Shutdown(pb.ShutdownRequest(reason=reason), timeout=deadlines.SHUTDOWN_SECONDS)

    def run(self, epoch: int) -> Any:
        """Open the stream Iteration → Ack."""
        return self._stub.Run(metadata=((EPOCH_KEY, str(epoch)),))

    def results(self, epoch: int) -> Any:
        """Open the stream of results."""
        return self._stub.Results(pb.ResultsRequest(epoch=epoch))

    async def close(self) -> None:
        """Close the channel and every stream on it."""
        await self._channel.close()

    async def _call(
        self, call: Callable[Arguments, Awaitable[Reply]], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Reply:
        """Make a call; raise typed errors, also if `close` ends it, which grpc.aio shows as a cancellation."""
        try:
            return await call(*args, **kwargs)
        except grpc.aio.AioRpcError as error:
            raise self._translate(error) from error
        except grpc.aio.UsageError as error:  # the call began after `close`
            raise self._closed() from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._closed() from error

    def _closed(self) -> WorkerLostError:
        message = f"worker {self.address}: the connection was closed"
        return WorkerLostError(message, None, self.address, Evidence.GONE)

    def _translate(self, error: grpc.aio.AioRpcError) -> Exception:
        """Return the typed error for the status of a unary call or of Load."""
        fault = faults.from_error(error)
        if fault is None:
            return self.gone(error)
        if fault.kind == pb.FAULT_KIND_REQUEST:
            return ConfigurationError(fault.message or "refused by the worker")
        return lost_worker(fault, self.address)

    def gone(self, error: grpc.aio.AioRpcError) -> WorkerLostError:
        """Return the error for a call that ended without a fault: the worker, its host or the network failed."""
        details = error.details() or error.code().name
        return WorkerLostError(f"worker {self.address}: {details}", None, self.address, Evidence.GONE)
