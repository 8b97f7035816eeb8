"""`RankConnection`: the controller's end of the socket pair of one rank: writes commands, decodes replies.

A rank that fails sends its fault and exits, with commands unread. The kernel then resets the connection, and a command
that the controller writes at that moment breaks it. asyncio's streams drop, in both cases, what was received and not
read yet. This protocol takes each reply when it arrives, and after an error what the kernel still holds, so that the
fault, which names the rank that is the cause, is not lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast

from orca_protos import engine_pb2 as pb

from orca_worker.frames import FrameError, ReplyDecoder, encode

READ_BYTES = 1 << 16


class RankConnection(asyncio.Protocol):
    """One connection, which `open` opens. `take` gets each reply that comes before `close`.

    If the connection breaks after `close`, with commands unwritten, it gets the rest, too.
    """

    def __init__(self, connection: socket.socket, take: Callable[[pb.RankReply], None]) -> None:
        self._socket = connection
        self._take = take
        self._decoder = ReplyDecoder()
        self.ended: asyncio.Future[FrameError | None] = asyncio.get_running_loop().create_future()
        """Done after the last reply. Its result is the error in the bytes after that reply, if there is one."""

    async def open(self) -> None:
        """Begin to take replies. The socket belongs to the event loop from now on."""
        await asyncio.get_running_loop().create_connection(lambda: self, sock=self._socket)

    def write(self, command: pb.RankCommand) -> None:
        """Put a command into the rank's local queue. Never blocks; a rank that has ended gets nothing."""
        self._transport.write(encode(command))

    def close(self) -> None:
        """Close the connection when all commands are written; read no more replies."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol."""
        if self.ended.done():
            return
        try:
            for reply in self._decoder.feed(data):
                self._take(reply)
        except FrameError as error:
            self.ended.set_result(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Part of asyncio.Protocol. Without an error the end of the stream has been read, or `close` was called."""
        try:
            if error is not None:
                with contextlib.suppress(OSError):  # the reset; or nothing left of a rank that lives
                    while data := self._socket.recv(READ_BYTES):
                        self.data_received(data)
        finally:
            if not self.ended.done():
                self.ended.set_result(None)
