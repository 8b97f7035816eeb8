"""The messages between the master and its API processes, as values; link_codec.py has their wire form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from orca_master.endpoint.config import EndpointConfig
from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.messages import Output, Submission


class LinkError(Exception):
    """The other end broke the protocol: nothing more is read from it or sent to it."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Hands a request over. The Answer of the same number carries no value, or the reason for a refusal."""

    number: int
    submission: Submission


@dataclass(frozen=True, slots=True)
class Release:
    """Cancels a request that has not ended. `ended_as`: see EngineClient.release."""

    request_id: str
    ended_as: str | None


@dataclass(frozen=True, slots=True)
class AskMetrics:
    """Asks for the metrics. The Answer of the same number carries the text exposition."""

    number: int


@dataclass(frozen=True, slots=True)
class Hello:
    """First message on a connection: the model and the options to serve it with."""

    model_path: Path
    config: EndpointConfig
    status: EngineStatus


@dataclass(frozen=True, slots=True)
class Answer:
    """A value, or the error to raise."""

    number: int
    value: bytes | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs of one iteration for the requests of one process."""

    outputs: list[Output]


ToMaster: TypeAlias = Submit | Release | AskMetrics
FromMaster: TypeAlias = Hello | Answer | Outputs | EngineStatus
