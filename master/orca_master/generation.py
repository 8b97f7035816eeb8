"""`Generator`: from a request on the wire to pieces of text, for any number of prompts and choices.

Each prompt becomes `n` submissions to the engine, one per choice, which differ in `choice` alone (and so in their
noise). The choices run side by side; `pieces` yields what any of them says, as it comes. A stop string ends its
choice here: the engine is told to cancel it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from orca_protos import engine_pb2 as pb

from orca_master.engine_client import EngineClient
from orca_master.engine_types import Submission
from orca_master.errors import RequestError, RequestTimeoutError
from orca_master.openai_types import GenerationRequest
from orca_master.request import FinishReason, SamplingParameters
from orca_master.tokenizer import IncrementalDecoder, TextCodec

PIECE_BYTES = 256
"""Of a piece without its text, with its place in the queue."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one generated token adds to one choice."""

    index: int
    text: str
    token: int
    logprobs: pb.Logprobs | None
    finish_reason: Literal["stop", "length"] | None


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice on its way: what the engine is asked for, and how its tokens become text."""

    index: int
    submission: Submission
    decoder: IncrementalDecoder


@dataclass(frozen=True, slots=True)
class Generation:
    """All choices of one request. `prompts` are the token ids of each prompt."""

    request_id: str
    created: int
    prompts: list[list[int]]
    choices: list[Choice]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(map(len, self.prompts))

    def prompt_of(self, index: int) -> list[int]:
        """Token ids of the prompt behind a choice."""
        return self.prompts[index // (len(self.choices) // len(self.prompts))]


class Generator:
    """Makes generations and runs them. `timeout` is in seconds, None for no limit.

    `max_unread_bytes` bounds the pieces of one generation that nobody has taken yet.
    """

    def __init__(self, engine: EngineClient, codec: TextCodec, timeout: float | None, max_unread_bytes: int) -> None:
        self._engine = engine
        self._codec = codec
        self._timeout = timeout
        self._max_unread_bytes = max_unread_bytes
        self.idle = asyncio.Event()
        """Set while no generation is under way."""
        self.idle.set()
        self._num_active = 0

    def prepare(
        self, prefix: str, body: GenerationRequest, prompts: list[list[int]], max_tokens: int, logprobs: int | None
    ) -> Generation:
        """Returns the choices of a request; raises RequestError for tokens that the model does not have."""
        vocabulary = self._engine.status.vocabulary_size
        bias = tuple((int(token), value) for token, value in body.logit_bias.items())
        for field, tokens in (
            *(("prompt", prompt) for prompt in prompts),
            ("stop_token_ids", body.stop_token_ids),
            ("logit_bias", [token for token, _ in bias]),
        ):
            if max(tokens, default=0) >= vocabulary:
                raise RequestError(
                    f"{field}: token id {max(tokens)} is not below the vocabulary size {vocabulary}", field
                )
        if not all(prompts):
            raise RequestError("the prompt is empty: at least one token is needed", "prompt")
        if body.min_tokens > max_tokens:
            raise RequestError(f"min_tokens: {body.min_tokens} exceeds max_tokens, {max_tokens}", "min_tokens")
        stop = frozenset(body.stop_token_ids) | (frozenset() if body.ignore_eos else self._codec.stop_token_ids)
        seed = secrets.randbits(63) if body.seed is None else body.seed % 2**64
        request_id = f"{prefix}-{uuid.uuid4().hex}"
        choices = []
        for index in range(len(prompts) * body.n):
            prompt_index, choice = divmod(index, body.n)
            sampling = SamplingParameters(
                temperature=body.temperature,
                top_p=body.top_p,
                seed=seed,
                choice=choice,
                top_k=max(0, body.top_k),
                min_p=body.min_p,
                presence_penalty=body.presence_penalty,
                frequency_penalty=body.frequency_penalty,
                repetition_penalty=body.repetition_penalty,
                logit_bias=bias,
                min_tokens=body.min_tokens,
                logprobs=logprobs,
            )
            submission = Submission(f"{request_id}-{index}", tuple(prompts[prompt_index]), max_tokens, sampling, stop)
            decoder = self._codec.decoder(body.stop_strings, body.include_stop_str_in_output, body.skip_special_tokens)
            choices.append(Choice(index, submission, decoder))
        return Generation(request_id, int(time.time()), prompts, choices)

    async def pieces(self, generation: Generation) -> AsyncIterator[Piece]:
        """Yields the pieces of all choices as they come; leaving early cancels what still runs.

        Raises what the engine refuses or fails with, and RequestTimeoutError, also after a caller has left too many
        pieces untaken: the engine's work for them is then cancelled at once.
        """
        unread = _Unread(self._max_unread_bytes)
        self._num_active += 1
        self.idle.clear()
        try:
            async with _cancelling() as tasks:
                tasks += [asyncio.create_task(self._run(choice, unread)) for choice in generation.choices]
                deadline = None if self._timeout is None else asyncio.get_running_loop().time() + self._timeout
                left = len(tasks)
                while left:
                    try:
                        async with asyncio.timeout_at(deadline):
                            piece = await unread.get()
                    except TimeoutError as error:
                        raise RequestTimeoutError(f"not finished within {self._timeout:.0f} s") from error
                    if piece is not None:
                        yield piece
                        continue
                    left -= 1
                    if unread.exceeded:
                        raise RequestTimeoutError(
                            f"the client does not read: more than {self._max_unread_bytes} bytes wait for it"
                        )
                    for task in tasks:
                        if task.done() and (failure := task.exception()) is not None:
                            raise failure
        finally:
            self._num_active -= 1
            if self._num_active == 0:
                self.idle.set()

    async def _run(self, choice: Choice, unread: _Unread) -> None:
        """Puts the pieces of one choice into `unread`, and None at its end, however it ends."""
        own_task = asyncio.current_task()
        assert own_task is not None
        try:
            async with contextlib.aclosing(self._engine.generate(choice.submission)) as outputs:
                async for output in outputs:
                    assert output.token is not None
                    reason = output.finish_reason
                    text = choice.decoder.step(output.token, last=reason is not None)
                    if choice.decoder.stopped:
                        reason = FinishReason.STOP
                    finish: Literal["stop", "length"] | None = None
                    if reason is not None:
                        finish = "stop" if reason is FinishReason.STOP else "length"
                    unread.put(Piece(choice.index, text, output.token, output.logprobs, finish))
                    if finish is not None:
                        return
                    if unread.exceeded:
                        own_task.cancel()  # where the next output is awaited: the engine counts it as aborted
        finally:
            unread.put(None)


class _Unread:
    """The pieces of a generation on their way to one reader, estimated in bytes; None ends a choice."""

    def __init__(self, max_bytes: int) -> None:
        self._queue: asyncio.Queue[Piece | None] = asyncio.Queue()
        self._bytes_left = max_bytes
        self.exceeded = False
        """Whether the reader has left more than `max_bytes` untaken."""

    def put(self, piece: Piece | None) -> None:
        """Adds a piece."""
        self._bytes_left -= _size(piece)
        self.exceeded = self.exceeded or self._bytes_left < 0
        self._queue.put_nowait(piece)

    async def get(self) -> Piece | None:
        """Waits for the next piece."""
        piece = await self._queue.get()
        self._bytes_left += _size(piece)
        return piece


def _size(piece: Piece | None) -> int:
    """Bytes of memory that a piece holds, roughly."""
    if piece is None:
        return 0
    return PIECE_BYTES + len(piece.text) + (0 if piece.logprobs is None else 4 * piece.logprobs.ByteSize())


@contextlib.asynccontextmanager
async def _cancelling() -> AsyncIterator[list[asyncio.Task[None]]]:
    """A list of tasks that are cancelled and waited for when the block is left."""
    tasks: list[asyncio.Task[None]] = []
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
