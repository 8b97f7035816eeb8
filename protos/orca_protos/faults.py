"""`Fault` in the trailing metadata of a gRPC status: how a controller tells the master, or the controller before it."""

from __future__ import annotations

import grpc.aio
from google.protobuf.message import DecodeError

from orca_protos import engine_pb2 as pb

FAULT_KEY = "orca-fault-bin"
MAX_MESSAGE_BYTES = 2000
MAX_DETAILS_BYTES = 1000
"""A status and its metadata travel in HTTP/2 headers, of which gRPC takes 8 KiB, details percent-encoded."""


def to_metadata(fault: pb.Fault) -> tuple[tuple[str, bytes], ...]:
    """Return the trailing metadata that carry `fault`, with its message cut to MAX_MESSAGE_BYTES."""
    short = pb.Fault()
    short.CopyFrom(fault)
    short.message = cut(fault.message, MAX_MESSAGE_BYTES)
    return ((FAULT_KEY, short.SerializeToString()),)


def from_error(error: grpc.aio.AioRpcError) -> pb.Fault | None:
    """Return the fault that a status carries; None if it carries none, as when the peer is gone."""
    for key, value in error.trailing_metadata() or ():
        if key == FAULT_KEY:
            try:
                return pb.Fault.FromString(value)
            except DecodeError:
                return None
    return None


def cut(text: str, size: int) -> str:
    """Return the beginning of `text` that takes at most `size` bytes in UTF-8."""
    return text.encode(errors="replace")[:size].decode(errors="ignore")
