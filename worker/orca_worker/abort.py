"""`abort`: ends a gRPC call with the status of an error, and the `Fault` in its trailing metadata."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
from orca_protos import engine_pb2 as pb
from orca_protos import faults

from orca_worker.errors import EpochError, FaultError, ModelError, kind_of


async def abort(context: Any, error: ModelError | EpochError | FaultError, epoch: int, partition: int) -> NoReturn:
    """End the call of `context`; `epoch` and `partition`: the controller's. Raises gRPC's AbortError."""
    fault = pb.Fault(message=str(error), kind=kind_of(error), epoch=epoch, partition=partition)
    code = grpc.StatusCode.INVALID_ARGUMENT
    if isinstance(error, EpochError):
        code = grpc.StatusCode.FAILED_PRECONDITION
    elif isinstance(error, FaultError):
        fault = error.fault
        code = grpc.StatusCode.RESOURCE_EXHAUSTED if fault.out_of_memory else grpc.StatusCode.ABORTED
    details = faults.cut(fault.message, faults.MAX_DETAILS_BYTES)
    await context.abort(code, details, faults.to_metadata(fault))
    raise AssertionError("abort raises")
