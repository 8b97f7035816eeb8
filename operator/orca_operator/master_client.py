"""Calls to the admin port of engine masters (docs/contracts.md, sections 6 and 8).

A master whose pod mounts certificates speaks mutual TLS: the operator proves that it is `operator.IDENTITY`, and the
master that it is `master.IDENTITY`, whatever the address of its pod.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from dataclasses import dataclass
from typing import Any

import httpx
from orca_contract import routes
from orca_contract.message import Message, UnknownFields, read
from orca_contract.state import StateReport

logger = logging.getLogger(__name__)

CALL_SECONDS = 3.0
"""To connect, and between two parts of an answer."""
ANSWER_SECONDS = 10.0
"""For a whole call: the limit above starts anew with every byte."""
MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""A report of 1,000 pipelines of 64 workers takes 7 MB."""
MAX_QUOTED_CHARACTERS = 300


class MasterError(Exception):
    """A failed call; `status` is the HTTP status, 0 without an answer, 200 for an answer that is no state report."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Credentials:
    """The operator's certificate, key and trusted authorities (PEM), and the DNS name of the masters they are for."""

    certificate: bytes
    key: bytes
    authorities: bytes
    server_name: str


@dataclass(frozen=True, slots=True)
class Door:
    """How to reach one master: host:port, bearer token, and credentials; None for a master that speaks plaintext."""

    address: str
    token: str
    credentials: Credentials | None = None


class MasterClient:
    """The connections to all masters."""

    def __init__(self) -> None:
        self._plain = httpx.AsyncClient(timeout=CALL_SECONDS, trust_env=False)
        self._secure: dict[str, tuple[Credentials, httpx.AsyncClient]] = {}
        self._unknown_fields = UnknownFields(logger)

    async def state(self, door: Door) -> StateReport:
        """Return the answer to `GET /state`; raise MasterError."""
        return await self._call("GET", door, routes.STATE, None)

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
        """Return the client for these credentials; changed ones close the connections made with the earlier ones."""
        if credentials is None:
            return self._plain
        known = self._secure.get(credentials.server_name)
        if known is not None and known[0] == credentials:
            return known[1]
        try:
            context = tls_context(credentials)
        except (ssl.SSLError, ValueError) as error:
            raise MasterError(f"the operator's certificate cannot be used: {error}") from error
        await self.forget(credentials.server_name)
        client = httpx.AsyncClient(timeout=CALL_SECONDS, trust_env=False, verify=context)
        self._secure[credentials.server_name] = (credentials, client)
        return client

    async def _call(self, method: str, door: Door, path: str, body: Any) -> StateReport:
        client = await self._client(door.credentials)
        scheme, extensions = "http", {}
        if door.credentials is not None:
            scheme, extensions = "https", {"sni_hostname": door.credentials.server_name}
        headers = {"Authorization": f"Bearer {door.token}"}
        url = f"{scheme}://{door.address}{path}"
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                client.stream(method, url, headers=headers, json=body, extensions=extensions) as answer,
            ):
                content = await _content(answer)
        except TimeoutError as error:
            raise MasterError(f"{door.address}{path}: no answer within {ANSWER_SECONDS:.0f} s") from error
        except httpx.HTTPError as error:
            raise MasterError(f"{door.address}{path}: {str(error) or type(error).__name__}") from error
        if not answer.is_success:  # also a redirect: the token is for this address alone
            text = content.decode(errors="replace")[:MAX_QUOTED_CHARACTERS]
            raise MasterError(f"{path}: {answer.status_code} {text}", answer.status_code)
        try:
            report, unknown = read(StateReport, content)
        except ValueError as error:
            raise MasterError(f"{door.address}{path}: the answer is no state report: {error}", 200) from error
        self._unknown_fields.log(f"{door.address}{path}", unknown)
        return report


async def _content(answer: httpx.Response) -> bytes:
    """Read a body; raises MasterError for one of more than MAX_ANSWER_BYTES."""
    content = bytearray()
    async for part in answer.aiter_bytes():
        content += part
        if len(content) > MAX_ANSWER_BYTES:
            raise MasterError(f"{answer.url.path}: the answer has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(content)


def tls_context(credentials: Credentials) -> ssl.SSLContext:
    """Return a client's context; raise ssl.SSLError or ValueError for PEM that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=credentials.authorities.decode("ascii"))
    # Python's ssl reads keys from files only. A file in memory leaves no key on a disk.
    file = os.memfd_create("operator-certificate")
    try:
        os.write(file, credentials.certificate + b"\n" + credentials.key)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context
