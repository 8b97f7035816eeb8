"""`Aborting`: ends a gRPC call with the status of an error, and the `Fault` in its trailing metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from orca_protos import engine_pb2 as pb
from orca_protos import faults

from orca_worker.errors import EpochError, FaultError, ModelError, kind_of


class Aborting:
    """Context manager: aborts a call if a ModelError, EpochError or FaultError is raised inside.

    `place` returns the controller's epoch and partition. Not a generator, which a closing event loop would end beside
    the generators of calls that stream.
    """

    def __init__(self, context: Any, place: Callable[[], tuple[int, int]]) -> None:
        self._context = context
        self._place = place

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, ModelError | EpochError | FaultError):
            return
        epoch, partition = self._place()
        message = str(error).encode(errors="backslashreplace").decode()  # names of files may be no UTF-8
        fault = pb.Fault(message=message, kind=kind_of(error), epoch=epoch, partition=partition)
        code = grpc.StatusCode.INVALID_ARGUMENT
        if isinstance(error, EpochError):
            code = grpc.StatusCode.FAILED_PRECONDITION
        elif isinstance(error, FaultError):
            fault = error.fault
            code = grpc.StatusCode.RESOURCE_EXHAUSTED if fault.out_of_memory else grpc.StatusCode.ABORTED
        details = faults.cut(fault.message, faults.MAX_DETAILS_BYTES)
        await self._context.abort(code, details, faults.to_metadata(fault))
