"""Frames of the link between the master and its API processes: a length of 4 bytes, then one protobuf message.

The messages are in link_messages.py, their conversion in link_codec.py. In both directions the length of a received
frame and the number of unread bytes in the send buffer are limited.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

from orca_master.api_processes.link_messages import LinkError
from orca_master.endpoint.response_store import MAX_RESPONSE_BYTES
from orca_master.engine.engine_client import EngineStatus
from orca_master.scheduling.constraint import MAX_GRAMMAR_BYTES

MAX_FROM_MASTER_BYTES = 64 << 20
"""Maximum frame from the master: the metrics, or MAX_OUTPUTS outputs with their errors or log probabilities."""
MAX_UNREAD_BYTES = 64 << 20
"""Maximum size of the send buffer; a larger buffer means that the peer has stopped reading."""
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
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
