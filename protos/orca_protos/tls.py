"""`TlsFolder`: the certificates of one process, read from files and reloaded when they change.

The folder contains `tls.crt`, `tls.key` and `ca.crt`, as a kubernetes.io/tls Secret does. DNS names
`<role>.<deployment identity>` in the certificates identify their owners (docs/contracts.md, section 6).
"""

from __future__ import annotations

import contextlib
import logging
import math
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import grpc
import grpc.aio

from orca_protos.command_line import UNIX
from orca_protos.tls_context import mutual_context, own_names, reason_of
from orca_protos.wire import CHANNEL_OPTIONS

logger = logging.getLogger(__name__)

Role = Literal["master", "worker"]
FILES = ("tls.crt", "tls.key", "ca.crt")
MAX_FILE_BYTES = 1 << 20
RETRY_SECONDS = 5.0
"""Seconds from a failed read of changed files to the next one."""


class TlsError(Exception):
    """Certificates that cannot be used; the message names the folder or file, and the problem."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Certificate chain, key and CA certificates in PEM, and the deployment identity in the chain."""

    chain: bytes
    key: bytes
    authorities: bytes
    identity: str

    def server_context(self) -> ssl.SSLContext:
        """Return a context for servers that require client certificates."""
        return mutual_context(ssl.PROTOCOL_TLS_SERVER, self.chain, self.key, self.authorities)

    def client_context(self) -> ssl.SSLContext:
        """Return a context for clients, which check the server's name."""
        return mutual_context(ssl.PROTOCOL_TLS_CLIENT, self.chain, self.key, self.authorities)


class TlsFolder:
    """The certificates of a process of `role`; raises TlsError if they cannot be used at the start.

    If changed files cannot be used later, the reason is logged and the previous certificates stay in use. The files are
    read again after RETRY_SECONDS, also unchanged: their time of validity may not have begun. Thread-safe.
    """

    def __init__(self, folder: Path, role: Role) -> None:
        self._folder = folder
        self._role = role
        self._reading = threading.Lock()
        self._signature = self._sign()
        self._current = self._read()
        self._failed_at = math.inf
        self._logged_error = ""

    def current(self) -> Certificates:
        """Return the certificates, reloaded if the files have changed."""
        with self._reading:
            with contextlib.suppress(TlsError):  # a change in progress: the next call sees all files
                signature = self._sign()
                if signature != self._signature or time.monotonic() - self._failed_at >= RETRY_SECONDS:
                    self._signature = signature
                    self._renew()
            return self._current

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials that require a client certificate and use the current files for each handshake."""
        first = self.current()
        return grpc.dynamic_ssl_server_credentials(
            _configuration(first), self.configurations_after(first), require_client_authentication=True
        )

    def configurations_after(self, first: Certificates) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
        """Return gRPC's callback for every handshake: it returns a configuration if the files changed, else None."""
        # A configuration makes gRPC replace the factory of its handshakers, which is not safe during other handshakes
        # (https://github.com/grpc/grpc/issues/36693): with a configuration for every connection, idle connections
        # crash the process. Here the race remains only for the first handshake after a rotation.
        last = first
        comparing = threading.Lock()

        def configuration() -> grpc.ServerCertificateConfiguration | None:
            nonlocal last
            with comparing:
                if (now := self.current()) is last:
                    return None
                last = now
            return _configuration(now)

        return configuration

    def server_context(self) -> ssl.SSLContext:
        """Return a context for servers outside of gRPC that uses the current files for each handshake."""
        first = self.current()
        newest = (first, first.server_context())

        def renew(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
            nonlocal newest
            if (now := self.current()) is not newest[0]:
                newest = (now, now.server_context())
            connection.context = newest[1]

        context = first.server_context()
        context.sni_callback = renew
        return context

    def _renew(self) -> None:
        try:
            self._current = self._read()
        except TlsError as error:
            self._failed_at = time.monotonic()
            if str(error) != self._logged_error:
                self._logged_error = str(error)
                logger.warning("%s; the previous certificates stay in use", error)
        else:
            self._failed_at, self._logged_error = math.inf, ""
            logger.info("%s: reloaded certificates for %s.%s", self._folder, self._role, self._current.identity)

    def _sign(self) -> tuple[tuple[int, ...], ...]:
        """Return device, inode, size and time of each file, to detect changes; raise TlsError."""
        try:
            statuses = [(self._folder / name).stat() for name in FILES]
        except OSError as error:
            raise TlsError(f"--tls-dir {self._folder}: {error.filename}: {error.strerror}") from error
        return tuple((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns) for status in statuses)

    def _read(self) -> Certificates:
        contents = []
        for name in FILES:
            try:
                with (self._folder / name).open("rb") as file:
                    contents.append(file.read(MAX_FILE_BYTES))
            except OSError as error:
                raise TlsError(f"--tls-dir {self._folder}: {name}: {error.strerror}") from error
        chain, key, authorities = contents
        try:
            names = own_names(chain, key, authorities)
        except (ssl.SSLError, ValueError) as error:
            raise TlsError(f"--tls-dir {self._folder}: {', '.join(FILES)} do not match: {reason_of(error)}") from error
        except OSError as error:  # for example, the process has no more file descriptors
            raise TlsError(f"--tls-dir {self._folder}: {', '.join(FILES)}: {error.strerror}") from error
        identities = sorted({identity_of(name, self._role) for name in names} - {""})
        if len(identities) != 1:
            listed = ", ".join(names) or "none"
            raise TlsError(
                f"--tls-dir {self._folder}: tls.crt needs one DNS name {self._role}.DEPLOYMENT (its names: {listed})"
            )
        return Certificates(chain, key, authorities, identities[0])


def identity_of(name: str, role: str) -> str:
    """Return the deployment identity in a DNS name for `role`; empty for any other name."""
    first, _, rest = name.lower().partition(".")
    return rest if first == role and "*" not in rest else ""


def open_channel(address: str, tls: TlsFolder | None) -> grpc.aio.Channel:
    """Open a channel to a worker with the current certificates. Unix sockets are private and use no TLS."""
    if tls is None or address.startswith(UNIX):
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    now = tls.current()
    return grpc.aio.secure_channel(
        address,
        grpc.ssl_channel_credentials(now.authorities, now.key, now.chain),
        options=[*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", f"worker.{now.identity}")],
    )


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(certificates.key, certificates.chain)], certificates.authorities)
