"""Errors as the status of a gRPC call."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from orca_protos import engine_pb2 as pb
from orca_worker.abort import Aborting
from orca_worker.errors import ModelError


class Context:
    """A gRPC call that notes how it is aborted."""

    async def abort(self, code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, bytes], ...]) -> None:
        self.code, self.details = code, details
        ((_, self.fault),) = ((name, pb.Fault.FromString(value)) for name, value in metadata)


def test_a_message_with_the_name_of_a_file_that_is_no_utf_8():
    context = Context()

    async def call() -> None:
        with pytest.raises(ModelError):
            async with Aborting(context, lambda: (7, 1)):
                raise ModelError("m/\udcff: no such file")

    asyncio.run(call())
    assert context.code is grpc.StatusCode.INVALID_ARGUMENT
    assert context.details == context.fault.message == "m/\\udcff: no such file"
    assert (context.fault.epoch, context.fault.partition) == (7, 1)
