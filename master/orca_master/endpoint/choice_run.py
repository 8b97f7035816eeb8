"""`ChoiceRun`: the running choices of one generation.

Submits the choices to the engine, converts its outputs into pieces of text, and keeps the unread pieces. The first
choice is submitted alone, because the engine decides by it about all; the others follow in small groups. A stop string
ends its choice here, and the engine's request is cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

from orca_protos import engine_pb2 as pb

from orca_master.endpoint.recorder import Recorder
from orca_master.engine.engine_client import EngineClient
from orca_master.engine.messages import Output, Submission
from orca_master.errors import (
    CONSTRAINT_ERROR,
    EngineError,
    EngineUnavailableError,
    RequestError,
    RequestTimeoutError,
)
from orca_master.scheduling.request import FinishReason
from orca_master.text.detokenizer import IncrementalDecoder

PIECE_BYTES = 256
"""Memory of a piece without its text, including its place among the unread pieces."""
PIECES_TOGETHER = 64
"""Most pieces that `next_pieces` returns at once: their events are built before others are served."""
SUBMITTED_AT_ONCE = 16
"""Choices submitted before the event loops of endpoint and engine can serve other requests."""

Entry = TypeVar("Entry")


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
    prompt_logprobs: pb.PromptLogprobs | None = None
    """With the first piece of a prompt, if they are requested: those of the whole prompt."""

    def stop_reason(self, stop_token_ids: Sequence[int]) -> int | str | None:
        """Return the stop string, or the one of the request's tokens, that ended the choice; None for other ends."""
        if self.finish_reason != "stop":
            return None
        return self.token if self.stop_string is None and self.token in stop_token_ids else self.stop_string


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice: its submission to the engine, and its detokenizer."""

    index: int
    submission: Submission
    decoder: IncrementalDecoder
    first_of_prompt: int
    """Index of the first choice of the same prompt, which returns the prompt's log probabilities."""


@dataclass(frozen=True, slots=True)
class PromptRun:
    """The log probabilities of a prompt so far, and the outputs of its other choices that wait for the rest."""

    found: pb.PromptLogprobs = field(default_factory=pb.PromptLogprobs)
    held: list[tuple[Choice, Output]] = field(default_factory=list)


class ChoiceRun:
    """Submitted choices. `max_unread_bytes` limits the memory of the unread pieces; `recorder` records their tokens.

    The log probabilities of a prompt are joined, and come with the first piece of the prompt's first choice, before any
    piece of its other choices.
    """

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
        self._prompts: dict[int, PromptRun] = {}
        """Prompts whose log probabilities have not all arrived, by their first choice."""

    async def submit(self, choices: Sequence[Choice]) -> None:
        """Submit the choices to the engine; raise the first refusal."""
        for group in groups_of(choices):
            submissions = []
            for choice in group:
                self._running[choice.index] = choice
                if choice.submission.sampling.prompt_logprobs is not None and not choice.submission.generated:
                    self._prompts[choice.index] = PromptRun()
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
        self._bytes_left += sum(size_of(piece.text, piece.logprobs) for piece in pieces)
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
        if self._prompts and output.error is None and self._receive_with_prompt(choice, output):
            return
        try:
            if (failure := failure_of(output)) is not None:
                raise failure
            piece = as_piece(choice.index, choice.decoder, output)
        except Exception as error:  # raised by next_pieces
            self.fail(error)
            return
        if self._recorder is not None:
            self._recorder.note(choice.index, output)
        if piece.finish_reason is not None:
            del self._running[choice.index]
            # If the engine has not ended the request, a stop string did.
            self._engine.release(choice.submission.request_id, "stop")
        self._bytes_left -= size_of(piece.text, piece.logprobs)
        self._unread.append(piece)
        self._arrived.set()
        if self._bytes_left < 0:
            unread = f"more than {self._max_unread_bytes} bytes are unread"
            self.fail(RequestTimeoutError(f"the client does not read: {unread}"))

    def _receive_with_prompt(self, choice: Choice, output: Output) -> bool:
        """Keep an output until the log probabilities of its prompt are complete; return False if it need not wait.

        The first token of the prompt's first choice is received with all of them, then what was kept.
        """
        if (prompt := self._prompts.get(choice.first_of_prompt)) is None:
            return False
        if choice.index != choice.first_of_prompt:
            prompt.held.append((choice, output))
            return True
        if output.prompt_logprobs is not None:
            prompt.found.MergeFrom(output.prompt_logprobs)
        if output.token is not None:
            del self._prompts[choice.index]
            self._receive(choice, output._replace(prompt_logprobs=prompt.found))
            # A client could not read them before: the limit of unread bytes rises by theirs.
            self._bytes_left += sum(size_of("", held.logprobs) for _, held in prompt.held)
            for other, kept in prompt.held:
                self._receive(other, kept)
        return True


def groups_of(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Yield the entries in groups to submit together: the first alone, then up to SUBMITTED_AT_ONCE."""
    for start, end in itertools.pairwise((0, *range(1, len(entries), SUBMITTED_AT_ONCE), len(entries))):
        yield entries[start:end]


def failure_of(output: Output) -> EngineError | EngineUnavailableError | RequestError | None:
    """Return the error that ended the output's request, None without an error."""
    if output.error is None:
        return None
    if output.finish_reason is FinishReason.CONSTRAINT:
        return RequestError(output.error, code=CONSTRAINT_ERROR)
    of_request = output.finish_reason is FinishReason.FAULT
    return (EngineError if of_request else EngineUnavailableError)(output.error)


def as_piece(index: int, decoder: IncrementalDecoder, output: Output) -> Piece:
    """Convert an output of the engine for the choice `index`; raise EngineError if the token has no text."""
    assert output.token is not None
    reason = output.finish_reason
    try:
        text = decoder.step(output.token, last=reason is not None, stops=reason is FinishReason.STOP)
    except RequestError as error:  # the model has generated what its tokenizer does not decode
        raise EngineError(str(error)) from error
    stop_string = decoder.stop_string
    if stop_string is not None:
        reason = FinishReason.STOP
    finish: Literal["stop", "length"] | None = None
    if reason is not None:
        finish = "stop" if reason is FinishReason.STOP else "length"
    return Piece(
        index,
        text,
        output.token,
        output.logprobs,
        finish,
        output.num_cached,
        stop_string,
        output.prompt_logprobs,
    )


def size_of(text: str, logprobs: pb.Logprobs | None) -> int:
    """Return the approximate memory of a piece in bytes, without log probabilities of its prompt (`check_size`)."""
    return PIECE_BYTES + len(text) + (0 if logprobs is None else 4 * logprobs.ByteSize())
