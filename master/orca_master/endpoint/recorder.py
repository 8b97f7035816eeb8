"""`Recorder`: the interface that records a generation, so that another master can continue the generation.

`recorded` and `failure_of_record`: an error that ends a generation, as a text of the record and from it.
"""

from __future__ import annotations

from typing import Protocol

from orca_master.engine.messages import Output
from orca_master.errors import CONSTRAINT_ERROR, EngineError, RequestError

CONSTRAINT = f"{CONSTRAINT_ERROR}: "
"""Before the text of an error of the request's own constraints. Masters before it show it as a part of the text."""


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
    is_constraint = isinstance(failure, RequestError) and failure.code == CONSTRAINT_ERROR
    return f"{CONSTRAINT if is_constraint else ''}{failure}"


def failure_of_record(text: str) -> EngineError | RequestError:
    """Return the error of a text that is not empty."""
    if text.startswith(CONSTRAINT):
        return RequestError(text.removeprefix(CONSTRAINT), code=CONSTRAINT_ERROR)
    return EngineError(text)
