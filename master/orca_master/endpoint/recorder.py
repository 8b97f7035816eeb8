"""`Recorder`: the interface that records a generation, so that another master can continue the generation."""

from __future__ import annotations

from typing import Protocol

from orca_master.engine.messages import Output


class Recorder(Protocol):
    """Records the tokens of a generation before a client receives them."""

    def accept(self) -> None:
        """Record that the engine has accepted the generation."""

    def note(self, choice: int, output: Output) -> None:
        """Record the token of an output."""

    def flush(self) -> None:
        """Make the recorded tokens survive the process."""

    def end(self, error: str) -> None:
        """Record the end; `error` is "" if all choices are complete."""

    def interrupt(self) -> None:
        """End without a record: the server stops, and the next server continues the generation."""
