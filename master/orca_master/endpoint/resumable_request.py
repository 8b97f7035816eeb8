"""`ResumableRequest`: an accepted request with its tokens, from which its response can be built again at any time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace

from orca_protos import engine_pb2 as pb

from orca_master.bodies.openai_requests import GenerationRequest
from orca_master.endpoint.choice_run import PIECES_TOGETHER, Choice, Piece, as_piece
from orca_master.endpoint.generation import Generation, Generator
from orca_master.endpoint.recorded_body import body_of
from orca_master.endpoint.recorder import failure_of_record
from orca_master.engine.messages import Output, Trace
from orca_master.errors import EngineUnavailableError
from orca_master.journal.journal import Journal
from orca_master.journal.records import Accepted, Ended, JournalledRequest, Token, TokenLog
from orca_master.scheduling.request import FinishReason
from orca_master.text.detokenizer import IncrementalDecoder


class ResumableRequest:
    """One request, a `Recorder` of its generation. `ended`: None while it runs or waits to be resumed.

    `on_accepted` and `on_ended` are called with this request.
    """

    def __init__(
        self,
        journal: Journal,
        accepted: Accepted,
        on_accepted: Callable[[ResumableRequest], None],
        on_ended: Callable[[ResumableRequest], None],
        number: int | None = None,
    ) -> None:
        self.accepted = accepted
        self._on_accepted = on_accepted
        self._on_ended = on_ended
        self.number = number
        """In the journal; None until the engine has accepted the request."""
        self.ended: Ended | None = None
        self._journal = journal
        self._outputs = TokenLog()
        self._weights: pb.ModelFacts | None = None
        """See JournalledRequest."""
        self._waiters: list[asyncio.Future[None]] = []
        self._num_cached: dict[int, int] = {}
        """By choice, see Output; a restarted master does not know these."""
        self._interrupted = False
        """True if the server stops; the next server continues the request."""
        self.num_resumed = 0
        """See JournalledRequest."""
        self.restored_adapter: int | None = None
        """Number of the adapter that was loaded again for this request, None without one."""

    @property
    def body(self) -> GenerationRequest:
        """The body, with placeholders for texts that are not recorded."""
        return body_of(self.accepted.route, self.accepted.body)

    def generation(self, generator: Generator) -> Generation:
        """Return the generation from its beginning, with new decoders."""
        accepted, adapter = self.accepted, self.restored_adapter
        return generator.generation(
            accepted.request_id,
            accepted.created,
            self.body,
            accepted.prompts,
            accepted.max_tokens,
            accepted.logprobs,
            accepted.seed,
            accepted.deadline,
            accepted.owner,
            generator.models.number_at_start(self.body.model) if adapter is None else adapter,
            time.monotonic(),
            Trace("", "", 1, *accepted.parent),
        )

    def restore(self, journalled: JournalledRequest) -> None:
        """Take over the tokens and the end that the journal has."""
        self._outputs, self._weights = journalled.tokens, journalled.weights
        self.ended, self.num_resumed = journalled.ended, journalled.num_resumed

    async def unfinished(self, generation: Generation) -> list[Choice]:
        """Return the choices that are not complete, with the tokens that they have; advances their decoders.

        Lets the event loop serve others meanwhile: 128 choices can have hundreds of thousands of tokens.
        """
        generated: dict[int, list[int]] = {choice.index: [] for choice in generation.choices}
        for position, (token, piece) in enumerate(zip(self._outputs, self.known(generation), strict=True)):
            generated[token.choice].append(token.token)
            if piece.finish_reason is not None:
                del generated[token.choice]
            if position % PIECES_TOGETHER == 0:
                await asyncio.sleep(0)
        return [
            replace(
                choice,
                submission=replace(choice.submission, generated=tuple(generated[choice.index]), weights=self._weights),
            )
            for choice in generation.choices
            if choice.index in generated
        ]

    def content(self) -> JournalledRequest:
        """Return the request as the journal records it."""
        return JournalledRequest(self.accepted, self._outputs, self.ended, self.num_resumed, self._weights)

    # -- Recorder ------------------------------------------------------------------------------------

    def accept(self) -> None:
        """See Recorder."""
        if self.number is None:
            self.number = self._journal.accept(self.accepted)
            self._on_accepted(self)

    def note(self, choice: int, output: Output) -> None:
        """See Recorder."""
        if self.number is None:
            self.accept()  # the first token may come before the engine's answer
        assert output.token is not None
        assert self.number is not None
        if output.num_cached:
            self._num_cached[choice] = output.num_cached
        token = Token(
            choice,
            output.token,
            None if output.finish_reason is None else output.finish_reason.value,
            None if output.logprobs is None else output.logprobs.SerializeToString(),
            None if output.prompt_logprobs is None else output.prompt_logprobs.SerializeToString(),
        )
        self._outputs.append(token)
        self.num_resumed, self._weights = 0, None
        self._journal.note(self.number, token)
        if self._waiters:
            self._wake()

    def flush(self) -> None:
        """See Recorder."""
        self._journal.flush()

    def end(self, error: str) -> None:
        """See Recorder."""
        if self.number is not None and self.ended is None:
            self.ended = Ended(time.time(), error)
            self._journal.end(self.number, self.ended)
            self._wake()
            self._on_ended(self)

    def interrupt(self) -> None:
        """See Recorder."""
        self._interrupted = True
        self._wake()

    # -- reading -------------------------------------------------------------------------------------

    async def pieces(self, generation: Generation) -> AsyncIterator[list[Piece]]:
        """Yield all pieces, past and future, at most PIECES_TOGETHER at once.

        Raises the error that ended the request (`failure_of_record`), and EngineUnavailableError if the server stops.
        """
        known = self.known(generation)
        position = 0
        while True:
            while unread := min(len(self._outputs) - position, PIECES_TOGETHER):
                self.flush()
                yield list(itertools.islice(known, unread))
                position += unread
                await asyncio.sleep(0)  # lets the event loop serve others
            if self.ended is not None:
                break
            if self._interrupted:
                raise EngineUnavailableError("the server stops")
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        if self.ended.error:
            raise failure_of_record(self.ended.error)

    @property
    def num_tokens(self) -> int:
        """Number of the tokens so far, of all choices."""
        return len(self._outputs)

    def known(self, generation: Generation) -> Iterator[Piece]:
        """Return the pieces of the tokens so far, `num_tokens` of them, which keep only the generation's decoders."""
        return self._decoded([choice.decoder for choice in generation.choices])

    def _decoded(self, decoders: Sequence[IncrementalDecoder]) -> Iterator[Piece]:
        begun = set[int]()
        for token in self._outputs:
            reason = None if token.finish_reason is None else FinishReason(token.finish_reason)
            logprobs = None if token.logprobs is None else pb.Logprobs.FromString(token.logprobs)
            cached = 0 if token.choice in begun else self._num_cached.get(token.choice, 0)
            begun.add(token.choice)
            of_prompt = None
            if token.prompt_logprobs is not None:
                of_prompt = pb.PromptLogprobs.FromString(token.prompt_logprobs)
            output = Output(self.accepted.request_id, token.token, reason, None, logprobs, cached, of_prompt)
            yield as_piece(token.choice, decoders[token.choice], output)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
