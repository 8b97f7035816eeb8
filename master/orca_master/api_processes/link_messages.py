"""The messages between the master and its API processes; link_codec.py converts them to protobuf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from orca_master.endpoint.config import EndpointConfig
from orca_master.endpoint.response_store import StoredResponse
from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.messages import Output, Submission


class LinkError(Exception):
    """The peer violated the protocol; the link is closed."""


MAX_ID = 256
"""Maximum characters of an id and of an owner."""


def bounded(text: str) -> str:
    """Return an id or an owner of the peer; raise LinkError for more than MAX_ID characters."""
    if len(text) > MAX_ID:
        raise LinkError(f"an id or an owner of {len(text)} characters")
    return text


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
class CountResponse:
    """Counts an HTTP response in the metrics. `route`: path with names for its parameters."""

    route: str
    status: int


@dataclass(frozen=True, slots=True)
class AskMetrics:
    """Requests the metrics. The Answer with the same number contains Prometheus' text format."""

    number: int


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Loads an adapter. The Answer with the same number has no value, or the error of AdapterLoader.load."""

    number: int
    name: str
    path: str
    owner: str


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """Unloads an adapter. The Answer with the same number has no value, or the error of AdapterLoader.unload."""

    number: int
    name: str
    owner: str


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
class BeginResponse:
    """Stores a background response at its beginning. The Answer has no value, or the error of ResponseStore.begin."""

    number: int
    stored: StoredResponse
    events: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class AdvanceResponse:
    """Adds events of a background response. The Answer has True (b"1") or False (b"") of ResponseStore.advance."""

    number: int
    owner: str
    response_id: str
    events: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class EndResponse:
    """Ends a background response. The Answer has True (b"1") or False (b"") of ResponseStore.end."""

    number: int
    owner: str
    response_id: str
    data: bytes
    events: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class CancelResponse:
    """Cancels a background response. The Answer has no value."""

    number: int
    owner: str
    response_id: str


@dataclass(frozen=True, slots=True)
class AskEvents:
    """Requests events with numbers above `after`. The Answer has an EventPage, or b"" if there is no such response.

    If the page is empty and the response runs, ResponsesChanged comes at its next change.
    """

    number: int
    owner: str
    response_id: str
    after: int


ResponseMessage: TypeAlias = (
    StoreResponse
    | AskResponses
    | DeleteResponse
    | BeginResponse
    | AdvanceResponse
    | EndResponse
    | CancelResponse
    | AskEvents
)
"""Messages about stored responses."""


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


@dataclass(frozen=True, slots=True)
class ResponsesChanged:
    """Background responses have changed for which the process has sent AskEvents."""

    response_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class StopResponse:
    """Another than this process has ended the background response that the process generates."""

    response_id: str


Question: TypeAlias = Submit | AskMetrics | LoadAdapter | UnloadAdapter | ResponseMessage
"""Messages that have an Answer."""
ToMaster: TypeAlias = Question | Release | CountResponse
FromMaster: TypeAlias = Hello | Answer | Outputs | EngineStatus | ResponsesChanged | StopResponse
