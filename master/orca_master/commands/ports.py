"""The listening sockets of a master, bound before anything else starts; the signals that end a master; its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from dataclasses import dataclass

from orca_protos.listening import listen

from orca_master.endpoint.admin_token import AdminToken
from orca_master.errors import ConfigurationError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGNALS set, which the process has blocked until now."""
    stop = asyncio.Event()
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    return stop


def bind(host: str, port: int, count: int = 1) -> tuple[socket.socket, ...]:
    """Return listening sockets that share one port; raise ConfigurationError if the address cannot be bound."""
    try:
        # Bind without SO_REUSEPORT first, to detect a port in use by another program.
        first = listen(host, port)
        if count == 1:
            return (first,)
        port = first.getsockname()[1]
        first.close()
        return tuple(listen(host, port, shared=True) for _ in range(count))
    except OSError as error:
        raise ConfigurationError(f"--host {host} --port {port}: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class Parent:
    """What a master writes to the parent process that restarts it: pipes for signs of life and for its readiness."""

    heartbeat: int
    ready: int

    def note_ready(self) -> None:
        """Tell the parent that the master begins to serve."""
        os.write(self.ready, str(time.monotonic()).encode())  # of a clock that all processes share


@dataclass(frozen=True, slots=True)
class Ports:
    """Listening sockets of a master, `api` with one per API process. `admin_token` protects the admin port.

    `restarted`: the master takes the place of a killed master, whose clients' new connections already wait.
    """

    api: tuple[socket.socket, ...]
    probes: socket.socket | None = None
    admin: socket.socket | None = None
    admin_token: AdminToken | None = None
    restarted: bool = False
    parent: Parent | None = None
