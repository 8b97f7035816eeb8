"""The messages between the master and its API processes; link_codec.py converts them to protobuf."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from orca_master.endpoint.config import EndpointConfig
from orca_master.endpoint.response_store import StoredResponse
from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.messages import Output, Submission


class LinkError(Exception):
    """The peer violated the protocol; the link is closed."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Submits a request. The Answer with the same number has no value, or the error of a refusal."""

    number: int
    submission: Submission


@dataclass(frozen=True, slots=True)
class Release:
    """Cancels an unfinished request. `ended_as`: see EngineClient.release."""

    request_id: str
    ended_as: str | None


@dataclass(frozen=True, slots=True)
class AskMetrics:
    """Requests the metrics. The Answer with the same number contains Prometheus' text format."""

    number: int


@dataclass(frozen=True, slots=True)
class StoreResponse:
    """Stores a response. The Answer with the same number has True (b"1") or False (b"") of ResponseStore.put."""

    number: int
    stored: StoredResponse


@dataclass(frozen=True, slots=True)
class AskResponses:
    """Requests a response, with `with_previous` also all before it. The Answer has a StoredResponses."""

    number: int
    owner: str
    response_id: str
    with_previous: bool


@dataclass(frozen=True, slots=True)
class DeleteResponse:
    """Deletes a response. The Answer has True (b"1") or False (b"") of ResponseStore.delete."""

    number: int
    owner: str
    response_id: str


@dataclass(frozen=True, slots=True)
class Hello:
    """First message on a connection: the model, and the options for serving."""

    model_path: Path
    config: EndpointConfig
    status: EngineStatus


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a message with a number: a value, or the error to raise."""

    number: int
    value: bytes | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs of one iteration for the requests of one process."""

    outputs: list[Output]


ToMaster: TypeAlias = Submit | Release | AskMetrics | StoreResponse | AskResponses | DeleteResponse
FromMaster: TypeAlias = Hello | Answer | Outputs | EngineStatus
