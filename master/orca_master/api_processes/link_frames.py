"""Frames of the link between the master and its API processes: a length of 4 bytes, then one protobuf message.

The messages are in link_messages.py, their conversion in link_codec.py. In both directions the length of a received
frame and the number of unread bytes in the send buffer are limited. Complete frames that arrived before the link broke
are received: asyncio's own streams drop them if this end was writing when the peer had closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from asyncio.trsock import TransportSocket
from collections.abc import Awaitable, Callable
from pathlib import Path

from orca_master.api_processes.link_messages import LinkError
from orca_master.endpoint.response_store import MAX_RESPONSE_BYTES
from orca_master.engine.engine_client import EngineStatus
from orca_master.scheduling.constraint import MAX_GRAMMAR_BYTES

MAX_FROM_MASTER_BYTES = 64 << 20
"""Maximum frame from the master: the metrics, or MAX_OUTPUTS outputs with their errors or log probabilities."""
MAX_UNREAD_BYTES = 64 << 20
"""Maximum size of the send buffer; a larger buffer means that the peer has stopped reading."""
READ_BYTES = 1 << 16
_LENGTH = struct.Struct("<I")
_TOKEN_BYTES = 5
_BIAS_BYTES = _TOKEN_BYTES + 8
_OTHER_BYTES = (64 << 10) + MAX_GRAMMAR_BYTES
_RESPONSE_BYTES = (4 << 10) + 3 * MAX_RESPONSE_BYTES


def max_request_bytes(status: EngineStatus) -> int:
    """Return the maximum frame of a request: a prompt as long as the context, a bias for every token, a grammar."""
    return _OTHER_BYTES + _TOKEN_BYTES * status.max_model_len + _BIAS_BYTES * status.vocabulary_size


def max_to_master_bytes(status: EngineStatus) -> int:
    """Return the maximum frame to the master: a request, or a response that is stored, with two events."""
    return max(max_request_bytes(status), _RESPONSE_BYTES)


class LinkProtocol(asyncio.StreamReaderProtocol):
    """Protocol of the streams of one end of a link: its reader gets what arrived, then the end of the stream."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        self._socket: TransportSocket = transport.get_extra_info("socket")
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Part of asyncio.Protocol. After an error the kernel may still hold frames."""
        if error is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RD)  # a peer that lives and goes on to write adds nothing
                while data := os.read(self._socket.fileno(), READ_BYTES):
                    self.data_received(data)
        super().connection_lost(None)


async def open_link(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the server at a Unix socket; raise OSError."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    transport, protocol = await loop.create_unix_connection(lambda: LinkProtocol(reader), str(path))
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def serve_links(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], path: Path
) -> asyncio.Server:
    """Accept connections at a Unix socket, each of which `serve` serves; raise OSError."""
    loop = asyncio.get_running_loop()
    return await loop.create_unix_server(lambda: LinkProtocol(asyncio.StreamReader(), serve), path)


def send(writer: asyncio.StreamWriter, body: bytes) -> None:
    """Write a frame; raise LinkError if the peer does not read.

    Frames on a closed connection are dropped; `receive` detects the end of the link.
    """
    unread = writer.transport.get_write_buffer_size()
    if unread > MAX_UNREAD_BYTES:
        raise LinkError(f"the peer does not read: {unread} bytes are unread")
    writer.write(_LENGTH.pack(len(body)) + body)


async def receive(reader: asyncio.StreamReader, max_bytes: Callable[[], int]) -> bytes | None:
    """Wait for the next frame; None at the end of the stream.

    Raises LinkError, before the frame is read, if its length exceeds `max_bytes()` at that time.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > max_bytes():
            raise LinkError(f"a message of {length} bytes, the limit is {max_bytes()}")
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        return None
