"""`Recorder`: the interface that records a generation, so that another master can continue the generation.

`recorded` and `failure_of_record`: an error that ends a generation, as a text of the record and from it.
"""

from __future__ import annotations

from typing import Protocol

from orca_master.engine.messages import Output
from orca_master.errors import (
    ADAPTER_LIMIT,
    CONSTRAINT_ERROR,
    CONTEXT_EXCEEDED,
    EngineError,
    EngineUnavailableError,
    QueueFullError,
    RequestError,
    RequestTimeoutError,
)

Failure = EngineError | EngineUnavailableError | QueueFullError | RequestError | RequestTimeoutError

INVALID = "invalid_request_error"
"""Kind of a RequestError with another code than those of CODES, or without one."""
CODES = (CONSTRAINT_ERROR, CONTEXT_EXCEEDED, ADAPTER_LIMIT)
KINDS: dict[str, type[EngineUnavailableError | QueueFullError | RequestTimeoutError]] = {
    "engine_unavailable": EngineUnavailableError,
    "queue_full": QueueFullError,
    "request_timeout": RequestTimeoutError,
}
"""With CODES and INVALID what a recorded text may begin with, before a colon. Earlier versions show it as a part of the
text; a text without a kind is an EngineError."""


class Recorder(Protocol):
    """Records the tokens of a generation before a client receives them."""

    def accept(self) -> None:
        """Record that the engine has accepted the generation."""

    def note(self, choice: int, output: Output) -> None:
        """Record the token of an output."""

    def flush(self) -> None:
        """Make the recorded tokens survive the process."""

    def end(self, error: str) -> None:
        """Record the end; `error` is "" if all choices are complete, otherwise as `recorded` returns it."""

    def interrupt(self) -> None:
        """End without a record: the server stops, and the next server continues the generation."""


def recorded(failure: Exception) -> str:
    """Return the text of an error that ends a generation, for `Recorder.end`."""
    kind: str | None
    if isinstance(failure, RequestError):
        kind = failure.code if failure.code in CODES else INVALID
    else:
        kind = next((name for name, error in KINDS.items() if isinstance(failure, error)), None)
    return str(failure) if kind is None else f"{kind}: {failure}"


def failure_of_record(text: str) -> Failure:
    """Return the error of a text that is not empty; a RequestError has no field."""
    kind, _, message = text.partition(": ")
    if kind in KINDS:
        return KINDS[kind](message)
    if kind in (*CODES, INVALID):
        return RequestError(message, code=kind if kind in CODES else None)
    return EngineError(text)
