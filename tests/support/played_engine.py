"""An engine that gives the tokens of its answer when the test lets it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from orca_master.engine.messages import Output, Submission
from orca_master.scheduling.request import FinishReason
from orca_master.text.tokenizer import TextCodec

from support.scripted_engine import ScriptedEngine


class PlayedEngine(ScriptedEngine):
    """Plays the last request; refuses requests with `refusal` if there is one. `aborted`: ids of cancelled requests."""

    def __init__(self, codec: TextCodec, answer: str, reason: FinishReason = FinishReason.STOP) -> None:
        super().__init__(codec, answer, reason)
        self.refusal: Exception | None = None
        self.aborted: list[str] = []
        self._receive: Callable[[Output], object] = print
        self._num_played = 0

    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        self.submissions.append(submission)
        self._receive, self._num_played = receive, 0
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.refusal is None:
            accepted.set_result(None)
        else:
            accepted.set_exception(self.refusal)
        return accepted

    def release(self, request_id: str, ended_as: str | None) -> None:
        if ended_as == "abort":
            self.aborted.append(request_id.rpartition("-")[0])

    def play(self, count: int = 1_000_000) -> None:
        """Output the next tokens."""
        tokens = self.tokens[self._num_played : self._num_played + count]
        for token in tokens:
            self._num_played += 1
            reason = self.reason if self._num_played == len(self.tokens) else None
            self._receive(Output(self.submissions[-1].request_id, token, reason))

    def fail(self, error: str) -> None:
        """End the request with an error of the engine."""
        self._receive(Output(self.submissions[-1].request_id, None, FinishReason.ERROR, error))
