"""`Fault` in the trailing metadata of a gRPC status, from a controller to the master or the preceding controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from orca_protos import engine_pb2 as pb

if TYPE_CHECKING:  # ranks have no gRPC
    import grpc.aio

FAULT_KEY = "orca-fault-bin"
MAX_MESSAGE_BYTES = 2000
MAX_DETAILS_BYTES = 1000
"""Status and metadata are HTTP/2 headers, of which gRPC accepts 8 KiB; details are percent-encoded."""


def to_metadata(fault: pb.Fault) -> tuple[tuple[str, bytes], ...]:
    """Return trailing metadata with `fault`, whose message is cut to MAX_MESSAGE_BYTES."""
    short = pb.Fault()
    short.CopyFrom(fault)
    short.message = cut(fault.message, MAX_MESSAGE_BYTES)
    return ((FAULT_KEY, short.SerializeToString()),)


def from_error(error: grpc.aio.AioRpcError) -> pb.Fault | None:
    """Return the fault in a status; None if there is none, for instance if the peer is unreachable."""
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
