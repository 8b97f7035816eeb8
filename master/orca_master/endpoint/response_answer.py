"""`ResponseAnswer`: the response object of one generation and the events of its stream. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from orca_master.endpoint.answer_parts import AnswerParser
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.openai_answers import ChatTokenLogprob
from orca_master.endpoint.response_objects import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseObject,
    ResponseUsage,
    Status,
    failed_response,
)
from orca_master.endpoint.response_output import Event, ResponseOutput
from orca_master.endpoint.response_prompt import in_response_fields
from orca_master.errors import EngineError, EngineUnavailableError, QueueFullError, RequestError, RequestTimeoutError

FAILURES = (EngineError, EngineUnavailableError, QueueFullError, RequestError, RequestTimeoutError)
"""Errors that can end a generation."""
_CODES = {QueueFullError: "rate_limit_exceeded", RequestError: "invalid_prompt"}


def fault_of(error: Exception) -> tuple[str, str]:
    """Return the code and the message of a response that one of FAILURES has ended."""
    return _CODES.get(type(error), "server_error"), str(in_response_fields(error))


class ResponseAnswer:
    """State of one answer. `response`: without output; `logprobs`: of a piece; `clock`: seconds since the epoch."""

    def __init__(
        self,
        response: ResponseObject,
        input_tokens: int,
        parser: AnswerParser,
        output: ResponseOutput,
        logprobs: Callable[[Piece], list[ChatTokenLogprob]],
        clock: Callable[[], float],
    ) -> None:
        self.response = response
        self._input_tokens = input_tokens
        self._parser = parser
        self._output = output
        self._logprobs = logprobs
        self._clock = clock
        self._output_tokens = self._cached_tokens = 0
        self._is_complete = False

    def begin(self) -> list[Event]:
        """Return the events before the first piece."""
        return [self._event("created"), self._event(self.response["status"])]

    def start(self) -> list[Event]:
        """Note that a queued response has its first piece; return the events before those of the piece."""
        self.response = {**self.response, "status": "in_progress"}
        return [self._event("in_progress")]

    def feed(self, piece: Piece) -> list[Event]:
        """Add a piece; return its events."""
        is_last = piece.finish_reason is not None
        parts = self._parser.feed(piece.text, is_last)
        self._output_tokens += 1
        self._cached_tokens += piece.num_cached
        self._is_complete = piece.finish_reason == "stop"
        return self._output.feed(parts, self._logprobs(piece))

    def end(self) -> list[Event]:
        """Complete the response after the last piece; return the last events."""
        status: Status = "completed" if self._is_complete else "incomplete"
        is_whole = self._is_complete and not self._parser.is_within_call
        events = self._output.end("completed" if is_whole else "incomplete")
        self.response = self._ended()
        self.response["status"] = status
        if self._is_complete:
            self.response["completed_at"] = int(self._clock())
        else:
            self.response["incomplete_details"] = IncompleteDetails(reason="max_output_tokens")
        return [*events, self._event(status)]

    def fail(self, code: str, message: str) -> list[Event]:
        """End the response with an error; return the last event."""
        if self._output.items:
            self._output.end("incomplete")
        self.response = failed_response(self._ended(), code, message)
        return [self._event("failed")]

    def _event(self, kind: str) -> Event:
        return {"type": f"response.{kind}", "response": self.response}

    def _ended(self) -> ResponseObject:
        """Return the response with its output and usage; earlier events keep theirs."""
        usage = ResponseUsage(
            input_tokens=self._input_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=self._cached_tokens),
            output_tokens=self._output_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=self._parser.num_reasoning),
            total_tokens=self._input_tokens + self._output_tokens,
        )
        return cast(ResponseObject, {**self.response, "output": self._output.items, "usage": usage})
