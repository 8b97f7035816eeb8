"""`ChoiceRun`: the running choices of one generation.

Submits the choices to the engine, converts its outputs into pieces of text, and keeps the unread pieces. The first
choice is submitted alone, because the engine decides by it about all; the others follow in small groups. A stop string
ends its choice here, and the engine's request is cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from orca_protos import engine_pb2 as pb

from orca_master.endpoint.recorder import Recorder
from orca_master.engine.engine_client import EngineClient
from orca_master.engine.messages import Output, Submission
from orca_master.errors import EngineError, EngineUnavailableError, RequestTimeoutError
from orca_master.scheduling.request import FinishReason
from orca_master.text.tokenizer import IncrementalDecoder

PIECE_BYTES = 256
"""Memory of a piece without its text, including its place among the unread pieces."""
PIECES_TOGETHER = 64
"""Most pieces that `next_pieces` returns at once: their events are built before others are served."""
SUBMITTED_AT_ONCE = 16
"""Choices submitted before the event loops of endpoint and engine can serve other requests."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The text and data of one generated token of a choice."""

    index: int
    text: str
    token: int
    logprobs: pb.Logprobs | None
    finish_reason: Literal["stop", "length"] | None
    num_cached: int = 0
    """See Output."""
    stop_string: str | None = None
    """The stop string that ended the choice."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice: its submission to the engine, and its detokenizer."""

    index: int
    submission: Submission
    decoder: IncrementalDecoder


class ChoiceRun:
    """Submitted choices. `max_unread_bytes` limits the memory of the unread pieces; `recorder` records their tokens."""

    def __init__(self, engine: EngineClient, max_unread_bytes: int, recorder: Recorder | None) -> None:
        self._engine = engine
        self._recorder = recorder
        self._max_unread_bytes = self._bytes_left = max_unread_bytes
        self._unread: deque[Piece] = deque()
        self._error: Exception | None = None
        """What ended the generation; raised after the unread pieces."""
        self._arrived = asyncio.Event()
        self._running: dict[int, Choice] = {}
        """Choices that must be released, by index."""

    async def submit(self, choices: Sequence[Choice]) -> None:
        """Submit the choices to the engine; raise the first refusal."""
        starts = (0, *range(1, len(choices), SUBMITTED_AT_ONCE), len(choices))
        for start, end in itertools.pairwise(starts):
            group = choices[start:end]
            submissions = []
            for choice in group:
                self._running[choice.index] = choice
                submissions.append(self._engine.submit(choice.submission, partial(self._receive, choice)))
            refusals = await asyncio.gather(*submissions, return_exceptions=True)
            for choice, refusal in zip(group, refusals, strict=True):
                if refusal is not None and self._running.pop(choice.index, None) is not None:
                    self._engine.release(choice.submission.request_id, None)
            for refusal in refusals:
                if refusal is not None:
                    raise refusal
        if self._recorder is not None:
            self._recorder.accept()

    async def next_pieces(self) -> list[Piece]:
        """Wait for a piece and return all unread pieces, at most PIECES_TOGETHER.

        Raises the error that ended the generation once the pieces before the error have been returned.
        """
        while not self._unread:
            if self._error is not None:
                raise self._error
            self._arrived.clear()
            await self._arrived.wait()
        pieces = [self._unread.popleft() for _ in range(min(len(self._unread), PIECES_TOGETHER))]
        self._bytes_left += sum(map(_size, pieces))
        if self._recorder is not None:
            self._recorder.flush()
        return pieces

    def fail(self, error: Exception) -> None:
        """Cancel all unfinished choices; `next_pieces` raises the first of these errors."""
        self.cancel()
        self._error = self._error or error
        self._arrived.set()

    def cancel(self) -> None:
        """Cancel all unfinished choices."""
        # The youngest first, so that waiting choices are removed before running choices free slots for them.
        while self._running:
            _, choice = self._running.popitem()
            self._engine.release(choice.submission.request_id, "abort")

    def _receive(self, choice: Choice, output: Output) -> None:
        if choice.index not in self._running:
            return  # output after a stop string or after the end of the generation
        try:
            if output.error is not None:
                of_request = output.finish_reason is FinishReason.FAULT
                raise (EngineError if of_request else EngineUnavailableError)(output.error)
            piece = as_piece(choice, output)
        except Exception as error:  # raised by next_pieces
            self.fail(error)
            return
        if self._recorder is not None:
            self._recorder.note(choice.index, output)
        if piece.finish_reason is not None:
            del self._running[choice.index]
            # If the engine has not ended the request, a stop string did.
            self._engine.release(choice.submission.request_id, "stop")
        self._bytes_left -= _size(piece)
        self._unread.append(piece)
        self._arrived.set()
        if self._bytes_left < 0:
            unread = f"more than {self._max_unread_bytes} bytes are unread"
            self.fail(RequestTimeoutError(f"the client does not read: {unread}"))


def as_piece(choice: Choice, output: Output) -> Piece:
    """Convert an output of the engine; raise RequestError if the token has no text."""
    assert output.token is not None
    reason = output.finish_reason
    text = choice.decoder.step(output.token, last=reason is not None)
    stop_string = choice.decoder.stop_string
    if stop_string is not None:
        reason = FinishReason.STOP
    finish: Literal["stop", "length"] | None = None
    if reason is not None:
        finish = "stop" if reason is FinishReason.STOP else "length"
    return Piece(choice.index, text, output.token, output.logprobs, finish, output.num_cached, stop_string)


def _size(piece: Piece) -> int:
    """Return the approximate memory of a piece in bytes."""
    return PIECE_BYTES + len(piece.text) + (0 if piece.logprobs is None else 4 * piece.logprobs.ByteSize())
