"""What travels between the master and its API processes, over a Unix socket: length-prefixed pickles of these messages.

Pickle is safe here: both ends are this program, and the socket lies in a folder that only its user may enter.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orca_master.endpoint import EndpointConfig
from orca_master.engine_client import EngineStatus
from orca_master.engine_types import Output, Submission

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Hello:
    """The master's first message: what to serve."""

    model_path: Path
    config: EndpointConfig
    status: EngineStatus


@dataclass(frozen=True, slots=True)
class Submit:
    """To the master, which gives an Answer of the same number: None, or why the request is refused."""

    number: int
    submission: Submission


@dataclass(frozen=True, slots=True)
class AskMetrics:
    """To the master, which answers with the text exposition."""

    number: int


@dataclass(frozen=True, slots=True)
class Release:
    """To the master: see EngineClient.release."""

    request_id: str
    ended_as: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """From the master: a value, or the error to raise."""

    number: int
    value: bytes | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Outputs:
    """From the master: what one iteration had for this process's requests."""

    outputs: list[Output]


def send(writer: asyncio.StreamWriter, message: Any) -> None:
    """Writes a message; one that cannot arrive any more is dropped, the reader of the other direction notices."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    writer.write(_LENGTH.pack(len(body)) + body)


async def receive(reader: asyncio.StreamReader) -> Any:
    """Waits for the next message; None at the end of the stream."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
