"""`HttpListener`: accepts the connections of one port, never more than the process has descriptors for.

asyncio's own servers accept without a bound, and log every failure to accept, with a traceback, up to 2,048 times a
second. At the limit, the listener closes connections without a request, those in their TLS handshake included, and on
ports with short responses the oldest connection (HttpLimits); otherwise new connections wait in the kernel's queue.

A connection gets its protocol, transport and timers with its first byte. Until then it is a socket in a dictionary, so
that many silent connections take little time of the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import socket
import ssl
import time
from collections.abc import Callable
from typing import TypeVar

from orca_protos.http_connection import BoundedProtocol, Registry
from orca_protos.http_limits import HttpLimits, OncePerSecond, connections_of_this_process

logger = logging.getLogger(__name__)

Connection = TypeVar("Connection")
BATCH = 64
"""Maximum number of connections accepted in one iteration of the event loop."""
SEND_BUFFER_BYTES = 128 << 10


class HttpListener(Registry):
    """Accepts on `listener`, which it owns, from `start` to `close`. Belongs to one event loop."""

    def __init__(
        self,
        listener: socket.socket,
        limits: HttpLimits,
        make_connection: Callable[[Registry], BoundedProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._listener = listener
        self._limits = limits
        self._make_connection = make_connection
        self._tls = tls
        self._cap = connections_of_this_process(limits.max_connections)
        self._loop = asyncio.get_running_loop()
        # A TLS client sends first: the handshake begins with its first byte.
        silence = min(limits.keep_alive_timeout, limits.header_timeout)
        self._silent_seconds = silence if tls is None else min(silence, limits.handshake_timeout)
        self._silent: dict[socket.socket, float] = {}
        """Connections without a byte, with the time of their acceptance; the oldest first."""
        self._sweeper: asyncio.TimerHandle | None = None
        """Timer that closes expired silent connections; None while there are none."""
        self._open: dict[BoundedProtocol, float] = {}
        """Connections that have sent a byte, with the time of the first; the oldest first."""
        self._waiting: dict[BoundedProtocol, float] = {}
        """Connections without a request in progress, with the start of that state; the oldest first."""
        self._connecting: dict[BoundedProtocol, asyncio.Task[None]] = {}
        self._accepting = False
        self._log = OncePerSecond()

    def start(self) -> None:
        """Start to accept connections."""
        self._listener.setblocking(False)
        # Inherited by the connections: otherwise the kernel buffers up to 4 MB of each unread response.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._resume()

    def close(self) -> None:
        """Close the listening socket and all connections without a byte; other connections stay open."""
        self._pause()
        self._listener.close()
        for peer in list(self._silent):
            if _has_bytes(peer):
                self._begin(peer)
            else:
                self._forget(peer)

    def note_waiting(self, connection: BoundedProtocol) -> None:
        """See Registry."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = time.monotonic()

    def note_busy(self, connection: BoundedProtocol) -> None:
        """See Registry."""
        self._waiting.pop(connection, None)

    def note_closed(self, connection: BoundedProtocol) -> None:
        """See Registry."""
        self._waiting.pop(connection, None)
        self._open.pop(connection, None)
        self._resume_below_cap()

    def _resume_below_cap(self) -> None:
        if self._num_connections < self._cap:
            self._resume()

    @property
    def _num_connections(self) -> int:
        return len(self._open) + len(self._silent)

    def _resume(self) -> None:
        if not self._accepting and self._listener.fileno() >= 0:
            self._accepting = True
            self._loop.add_reader(self._listener, self._accept)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(BATCH):
            if self._num_connections >= self._cap:
                self._make_room(f"{self._num_connections} connections are open, the limit")
                return
            try:
                peer, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._make_room(f"a connection could not be accepted: {error.strerror}")
                return
            peer.setblocking(False)
            try:
                self._loop.add_reader(peer, self._begin, peer)
            except OSError as error:  # the limit of epoll(7)
                peer.close()
                self._make_room(f"a connection could not be watched: {error.strerror}")
                return
            self._silent[peer] = time.monotonic()
            if self._sweeper is None:
                self._sweeper = self._loop.call_later(self._silent_seconds, self._sweep)

    def _begin(self, peer: socket.socket) -> None:
        """Set up a connection after its first byte or its end."""
        del self._silent[peer]
        self._loop.remove_reader(peer)
        connection = self._make_connection(self)
        self._open[connection] = time.monotonic()
        self.note_waiting(connection)
        task = self._connecting[connection] = self._loop.create_task(self._connect(peer, connection))
        # A callback, not a part of the task: a task that is cancelled before its first step runs no code.
        task.add_done_callback(functools.partial(self._connected, peer, connection))

    def _forget(self, peer: socket.socket) -> None:
        """Close a connection that has not sent a byte."""
        del self._silent[peer]
        self._loop.remove_reader(peer)
        peer.close()

    def _sweep(self) -> None:
        """Close expired silent connections, a batch in each iteration of the event loop."""
        for peer in _older(self._silent, time.monotonic() - self._silent_seconds, BATCH):
            self._forget(peer)
        oldest = next(iter(self._silent.values()), None)
        self._sweeper = None
        if oldest is not None:
            self._sweeper = self._loop.call_at(oldest + self._silent_seconds, self._sweep)
        self._resume_below_cap()

    def _make_room(self, reason: str) -> None:
        """Close connections; accept again when a connection has ended, or after `idle_seconds_when_full`."""
        self._pause()
        self._loop.call_later(self._limits.idle_seconds_when_full, self._resume)
        now = time.monotonic()
        silent = _older(self._silent, now - self._limits.idle_seconds_when_full, BATCH)
        ended = _older(self._waiting, now - self._limits.idle_seconds_when_full, BATCH - len(silent))
        action = "idle ones are closed" if silent or ended else "new ones wait"
        if not silent and not ended:
            ended = _older(self._open, now - self._limits.busy_seconds_when_full, 1)
            action = "the oldest is closed" if ended else action
        for connection in ended:
            self._end(connection)
        for peer in silent:
            self._forget(peer)
        if silent:
            self._resume_below_cap()
        if self._log.due():
            logger.warning("%s: %s (--max-connections, ulimit -n)", reason, action)

    def _end(self, connection: BoundedProtocol) -> None:
        if connection in self._connecting:
            self._connecting[connection].cancel()  # closes the transport of the handshake
        else:
            connection.abort()

    async def _connect(self, peer: socket.socket, connection: BoundedProtocol) -> None:
        """Give the connection its transport, after the handshake if the port has TLS."""
        seconds = self._limits.handshake_timeout if self._tls is not None else None
        await self._loop.connect_accepted_socket(lambda: connection, peer, ssl=self._tls, ssl_handshake_timeout=seconds)

    def _connected(self, peer: socket.socket, connection: BoundedProtocol, task: asyncio.Task[None]) -> None:
        """Remove a connection for which `_connect` has created no transport."""
        del self._connecting[connection]
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:  # cancelled by `_end`, no TLS, or disconnected
            peer.close()
            self.note_closed(connection)
        if error is not None and not isinstance(error, OSError):
            logger.error("a connection failed", exc_info=error)


def _has_bytes(peer: socket.socket) -> bool:
    try:
        return bool(peer.recv(1, socket.MSG_PEEK))
    except OSError:  # no byte yet, or the client has disconnected
        return False


def _older(connections: dict[Connection, float], latest: float, most: int) -> list[Connection]:
    """Return the connections with a time up to `latest` among the first `most`."""
    return [connection for connection, since in itertools.islice(connections.items(), most) if since <= latest]
