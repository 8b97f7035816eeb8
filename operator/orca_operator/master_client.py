"""Calls to the admin port of engine masters (docs/contracts.md, sections 6 and 8).

A master whose pod mounts certificates uses mutual TLS: the operator authenticates as `operator.IDENTITY`, and the
master as `master.IDENTITY`, independent of the address of its pod.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from typing import Any

import httpx
from orca_contract import routes
from orca_contract.message import Message, UnknownFields, read
from orca_contract.state import StateReport
from orca_protos.tls_context import mutual_context

logger = logging.getLogger(__name__)

CALL_SECONDS = 3.0
"""Timeout to connect, and between two parts of a response."""
ANSWER_SECONDS = 10.0
"""Timeout of a whole call: CALL_SECONDS starts again with every byte."""
MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""A report of 1,000 pipelines of 64 workers takes 7 MB."""
MAX_QUOTED_CHARACTERS = 300


class MasterError(Exception):
    """A failed call; `status` is the HTTP status, 0 without a response, 200 for a response that is no state report."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Credentials:
    """The operator's certificate, key and trusted authorities (PEM) for masters with the DNS name `server_name`."""

    certificate: bytes
    key: bytes
    authorities: bytes
    server_name: str


@dataclass(frozen=True, slots=True)
class Door:
    """Admin port of one master: host:port, bearer token, and credentials, None for a master without TLS."""

    address: str
    token: str
    credentials: Credentials | None = None


class MasterClient:
    """The connections to all masters."""

    def __init__(self) -> None:
        # Each master that sleeps holds a connection (alarm.py).
        unlimited = httpx.Limits(max_connections=None)
        self._plain = httpx.AsyncClient(timeout=CALL_SECONDS, trust_env=False, limits=unlimited)
        self._secure: dict[str, tuple[Credentials, httpx.AsyncClient]] = {}
        self._unknown_fields = UnknownFields(logger)

    async def state(self, door: Door, wait: float = 0.0) -> StateReport:
        """Return the response to `GET /state`, at the next request or after `wait` seconds; raise MasterError."""
        path = f"{routes.STATE}?wait={wait:g}" if wait else routes.STATE
        return await self._call("GET", door, path, None, wait)

    async def put(self, door: Door, path: str, body: Message) -> StateReport:
        """Change topology or scheduler and return the state after the change; raise MasterError."""
        return await self._call("PUT", door, path, body.wire())

    async def forget(self, server_name: str) -> None:
        """Close the connections to masters of this DNS name."""
        if (known := self._secure.pop(server_name, None)) is not None:
            await known[1].aclose()

    async def close(self) -> None:
        """Close all connections."""
        for server_name in list(self._secure):
            await self.forget(server_name)
        await self._plain.aclose()

    async def _client(self, credentials: Credentials | None) -> httpx.AsyncClient:
        """Return the client for these credentials; connections with earlier credentials are closed."""
        if credentials is None:
            return self._plain
        known = self._secure.get(credentials.server_name)
        if known is not None and known[0] == credentials:
            return known[1]
        try:
            context = tls_context(credentials)
        except (OSError, ValueError) as error:
            raise MasterError(f"the operator's certificate cannot be used: {error}") from error
        await self.forget(credentials.server_name)
        client = httpx.AsyncClient(timeout=CALL_SECONDS, trust_env=False, verify=context)
        self._secure[credentials.server_name] = (credentials, client)
        return client

    async def _call(self, method: str, door: Door, path: str, body: Any, wait: float = 0.0) -> StateReport:
        client = await self._client(door.credentials)
        scheme, extensions = "http", {}
        if door.credentials is not None:
            scheme, extensions = "https", {"sni_hostname": door.credentials.server_name}
        headers = {"Authorization": f"Bearer {door.token}"}
        url, timeout = f"{scheme}://{door.address}{path}", httpx.Timeout(CALL_SECONDS, read=wait + CALL_SECONDS)
        try:
            async with (
                asyncio.timeout(wait + ANSWER_SECONDS),
                client.stream(
                    method, url, headers=headers, json=body, extensions=extensions, timeout=timeout
                ) as answer,
            ):
                content = await _content(answer)
        except TimeoutError as error:
            raise MasterError(f"{door.address}{path}: no answer within {wait + ANSWER_SECONDS:.0f} s") from error
        except httpx.HTTPError as error:
            raise MasterError(f"{door.address}{path}: {str(error) or type(error).__name__}") from error
        if not answer.is_success:  # redirects, too: the token must not be sent to another address
            text = content.decode(errors="replace")[:MAX_QUOTED_CHARACTERS]
            raise MasterError(f"{path}: {answer.status_code} {text}", answer.status_code)
        try:
            report, unknown = read(StateReport, content)
        except ValueError as error:
            raise MasterError(f"{door.address}{path}: the response is not a state report: {error}", 200) from error
        self._unknown_fields.log(f"{door.address}{path}", unknown)
        return report


async def _content(answer: httpx.Response) -> bytes:
    """Read a body; raise MasterError for more than MAX_ANSWER_BYTES."""
    content = bytearray()
    async for part in answer.aiter_bytes():
        content += part
        if len(content) > MAX_ANSWER_BYTES:
            raise MasterError(f"{answer.url.path}: the response has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(content)


def tls_context(credentials: Credentials) -> ssl.SSLContext:
    """Return a client's context; raise ValueError or ssl.SSLError for unusable PEM, OSError as `mutual_context`."""
    context = mutual_context(ssl.PROTOCOL_TLS_CLIENT, credentials.certificate, credentials.key, credentials.authorities)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
