"""Length-prefixed protobuf frames between a controller and its ranks, over a Unix socket pair.

A frame is four bytes of little-endian length and a RankCommand (to the rank) or RankReply (from it).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from google.protobuf.message import DecodeError
from orca_protos import engine_pb2 as pb
from orca_protos.wire import MAX_MESSAGE_BYTES

_LENGTH = struct.Struct("<I")
MAX_FRAME_BYTES = MAX_MESSAGE_BYTES + 1024
"""Largest message of the control protocol plus the overhead of a frame."""


class FrameError(Exception):
    """Invalid frame: its length exceeds the bound, or its body cannot be decoded."""


def encode(message: pb.RankCommand | pb.RankReply) -> bytes:
    """Return the frame of a message."""
    body = message.SerializeToString()
    return _LENGTH.pack(len(body)) + body


def read_command(connection: socket.socket) -> pb.RankCommand | None:
    """Wait for the next command, None at the end of the stream or if it was reset. Raises FrameError.

    The kernel resets the connection if the controller was killed with replies unread.
    """
    try:
        header = _read_exactly(connection, _LENGTH.size)
        body = None if header is None else _read_exactly(connection, _checked_length(header))
    except ConnectionError:
        return None
    if body is None:
        return None
    try:
        return pb.RankCommand.FromString(body)
    except DecodeError as error:
        raise FrameError(f"a command of {len(body)} bytes cannot be decoded") from error


class ReplyDecoder:
    """Decodes the replies of a stream, whose bytes come in parts of any size."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def feed(self, data: bytes) -> Iterator[pb.RankReply]:
        """Yield the replies that are complete with `data`. Raises FrameError; the rest of the stream is lost then."""
        self._unread += data
        while len(self._unread) >= _LENGTH.size:
            length = _checked_length(self._unread)
            end = _LENGTH.size + length
            if len(self._unread) < end:
                return
            body = bytes(self._unread[_LENGTH.size : end])
            del self._unread[:end]
            try:
                yield pb.RankReply.FromString(body)
            except DecodeError as error:
                raise FrameError(f"a reply of {length} bytes cannot be decoded") from error


def _checked_length(header: bytes | bytearray) -> int:
    length: int = _LENGTH.unpack_from(header)[0]
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes exceeds the bound of {MAX_FRAME_BYTES}")
    return length


def _read_exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
