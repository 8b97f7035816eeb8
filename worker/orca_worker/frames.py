"""Length-prefixed protobuf frames between a controller and its ranks, over a Unix socket pair.

A frame is four bytes of little-endian length and a RankCommand (to the rank) or RankReply (from it).
"""

from __future__ import annotations

import asyncio
import socket
import struct

from orca_protos import engine_pb2 as pb

_LENGTH = struct.Struct("<I")


def encode(message: pb.RankCommand | pb.RankReply) -> bytes:
    """Returns the frame of a message."""
    body = message.SerializeToString()
    return _LENGTH.pack(len(body)) + body


def read_command(connection: socket.socket) -> pb.RankCommand | None:
    """Blocks for the next command; None at the end of the stream."""
    header = _read_exactly(connection, _LENGTH.size)
    if header is None:
        return None
    body = _read_exactly(connection, _LENGTH.unpack(header)[0])
    return None if body is None else pb.RankCommand.FromString(body)


async def read_reply(reader: asyncio.StreamReader) -> pb.RankReply | None:
    """Waits for the next reply; None at the end of the stream."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pb.RankReply.FromString(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _read_exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
