"""`Generator`: generates the choices of a request and yields the pieces of their text.

Each prompt becomes `n` submissions to the engine, one per choice, which differ only in `choice` (and thus in their
random numbers). The choices run concurrently (choice_run.py); `pieces` yields their pieces in order of arrival, those
that arrived while the reader was busy together.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from array import array
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace

from orca_contract.state import EngineState

from orca_master.bodies.openai_requests import GenerationRequest
from orca_master.endpoint.activity import Activity
from orca_master.endpoint.answer_parts import NO_FORMAT, AnswerFormat
from orca_master.endpoint.choice_run import Choice, ChoiceRun, Piece
from orca_master.endpoint.prompt_logprobs import check_size
from orca_master.endpoint.recorder import Recorder, recorded
from orca_master.endpoint.request_deadline import TimeLimit
from orca_master.endpoint.served_models import ServedModels
from orca_master.endpoint.token_choice import check_min_tokens, check_token_ids, check_tokens, sampling_values, stops_of
from orca_master.engine.engine_client import EngineClient
from orca_master.engine.messages import Choices, Submission, Trace
from orca_master.engine.request_limits import check_choices, check_generates
from orca_master.errors import RequestError, RequestTimeoutError
from orca_master.scheduling.sampling_parameters import SamplingParameters
from orca_master.text.tokenizer import TextCodec

CANCELLED = "cancelled: the client closed the connection"
NO_PARENT = Trace()


def salt_of(owner: str, cache_salt: str | None) -> str:
    """Return `Submission.cache_salt` for the digest of a client's key, and the client's own salt."""
    return hashlib.sha256(f"{owner} {cache_salt or ''}".encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Generation:
    """All choices of one request. `prompts` are the token ids of each prompt.

    `n`: choices of each prompt that the response has, the best ones of those that are generated (best_of.py).
    `max_tokens`: most generated tokens of a choice; 0: the prompt alone is returned, and the token that the engine
    generates is dropped. `deadline`: when the request must have ended, in seconds since the epoch; None: no limit.
    `timeout`: seconds from the arrival to the deadline; None: no limit, or the request is from a journal.
    """

    request_id: str
    created: int
    prompts: Sequence[Sequence[int]]
    choices: list[Choice]
    n: int
    max_tokens: int
    deadline: float | None = None
    timeout: float | None = None

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of all prompts, each prompt counted once."""
        return sum(map(len, self.prompts))

    @property
    def choices_per_prompt(self) -> int:
        """Number of consecutive choices of each prompt."""
        return len(self.choices) // len(self.prompts)

    def num_cached(self, pieces: Iterable[Piece]) -> int:
        """Return the prompt tokens that the prefix cache had, by pieces of the choices; each prompt counted once."""
        return sum(piece.num_cached for piece in pieces if piece.index % self.choices_per_prompt == 0)

    def prompt_of(self, index: int) -> Sequence[int]:
        """Return the token ids of a choice's prompt."""
        return self.prompts[index // self.choices_per_prompt]


class Generator:
    """Prepares and runs generations.

    `models`: the names that requests may use. `max_unread_bytes` limits the memory of the unread pieces of one
    generation (backpressure). `answers`: the formats of the model's answers.
    """

    def __init__(
        self,
        engine: EngineClient,
        codec: TextCodec,
        models: ServedModels,
        max_unread_bytes: int,
        answers: AnswerFormat = NO_FORMAT,
    ) -> None:
        self._answers = answers
        self.models = models
        self._engine = engine
        self._codec = codec
        self._max_unread_bytes = max_unread_bytes
        self.activity = Activity()
        """The generations that run, and embeddings (embeddings.py)."""

    def prepare(
        self,
        prefix: str,
        body: GenerationRequest,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        logprobs: int | None,
        limit: TimeLimit | None = None,
        owner: str = "",
        parent: Trace = NO_PARENT,
    ) -> Generation:
        """Create the choices of a request. `limit`: None for a request that arrives now and has no timeout.

        `prefix`: of the request's id. `owner`: digest of the client's key; requests of different owners share no K/V
        blocks. `parent`: of the request's span, see `parent_of`.

        Raises RequestError for a model that only embeds, invalid token ids, and more choices than the queue can ever
        hold, QueueFullError for more than now, ModelNotFoundError for an adapter unloaded since `Endpoint.check`.
        """
        status = self._engine.status
        check_generates(status)
        vocabulary = status.vocabulary_size
        num_tokens = sum(map(len, prompts)) + len(prompts) * max(1, max_tokens)
        name = "n" if body.num_choices == body.n else "best_of"
        check_choices(len(prompts), body.num_choices, num_tokens * body.num_choices, status, name)
        field = "logprobs" if body.prompt_logprobs is None else "prompt_logprobs"
        per_token = sum(1 + count for count in body.prompt_logprob_counts)
        check_size(sum(map(len, prompts)), per_token, body.n, field)
        for prompt in prompts:
            check_token_ids("prompt", prompt, vocabulary)
        stops = stops_of(body, self._codec)
        check_tokens(body, vocabulary, stops)
        self._answers.check_thinking(body, stops, max(1, max_tokens))
        if not all(prompts):
            raise RequestError("the prompt is empty: at least one token is needed", "prompt")
        check_min_tokens(body, max_tokens, "max_tokens")
        seed = secrets.randbits(63) if body.seed is None else body.seed % 2**64
        request_id = f"{prefix}{secrets.token_hex(16)}"
        limit = TimeLimit(time.monotonic(), None) if limit is None else limit
        now = time.time()
        waited = time.monotonic() - limit.arrived
        generation = self.generation(
            request_id,
            int(now),
            body,
            prompts,
            max_tokens,
            logprobs,
            seed,
            None if limit.timeout is None else now - waited + limit.timeout,
            owner,
            self.models.number_of(body.model, owner),
            limit.arrived,
            parent,
        )
        return replace(generation, timeout=limit.timeout)

    def generation(
        self,
        request_id: str,
        created: int,
        body: GenerationRequest,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        logprobs: int | None,
        seed: int,
        deadline: float | None,
        owner: str,
        adapter: int,
        arrived: float,
        parent: Trace = NO_PARENT,
    ) -> Generation:
        """Create the choices of a request that was checked before, with the adapter of a number.

        `arrived`: see Submission. `parent`: see `prepare`.
        """
        stop = stops_of(body, self._codec)
        salt = salt_of(owner, body.cache_salt)
        choices = []
        grammar = None if (made := self._answers.grammar(body, prompts[0])) is None else replace(made, owner=owner)
        count = len(prompts) * body.num_choices
        generated = max(1, max_tokens)
        num_tokens = sum(map(len, prompts)) * body.num_choices + count * generated
        if body.num_choices > body.n and logprobs is None:
            logprobs = 0  # decides which are the best
        group = Choices(request_id, count, num_tokens) if count > 1 else None
        trace = replace(parent, request_id=request_id, model=self.models.name_of(body.model), n=body.n)
        budgets = [self._answers.thinking_budget(body, prompt, grammar, generated) for prompt in prompts]
        shared = [array("I", prompt) for prompt in prompts]
        shared_parameters = sampling_values(body, self._codec) | {"logprobs": logprobs}
        for index in range(count):
            prompt_index, choice = divmod(index, body.num_choices)
            of_prompt = body.num_prompt_logprobs if choice == 0 else None  # once for each prompt
            # Equal prompts of a request without a seed have different answers, as in requests of their own.
            of_index = seed if body.seed is not None else (seed + prompt_index) % 2**64
            sampling = SamplingParameters(**shared_parameters, seed=of_index, choice=choice, prompt_logprobs=of_prompt)
            tokens = shared[prompt_index]
            submission = Submission(
                f"{request_id}-{index}",
                tokens,
                generated,
                sampling,
                stop,
                body.priority,
                choices=group,
                cache_salt=salt,
                grammar=grammar,
                adapter=adapter,
                arrived=arrived,
                thinking_budget=budgets[prompt_index],
                trace=trace,
            )
            decoder = self._codec.decoder(
                body.stop_strings,
                body.include_stop_str_in_output,
                body.skip_special_tokens,
                self._answers.shown_tokens(body),
                body.stop_token_ids,
                body.min_tokens,
                tokens if body.continues_text else (),
            )
            choices.append(Choice(index, submission, decoder, first_of_prompt=index - choice))
        return Generation(request_id, created, shared, choices, body.n, max_tokens, deadline)

    @property
    def is_stopped(self) -> bool:
        """True if the engine has ended."""
        return self._engine.status.state is EngineState.STOPPED

    async def pieces(
        self,
        generation: Generation,
        recorder: Recorder | None = None,
        choices: Sequence[Choice] | None = None,
        accepted: asyncio.Event | None = None,
    ) -> AsyncIterator[list[Piece]]:
        """Yield the pieces of all choices in order of arrival; closing the iterator cancels unfinished choices.

        `choices`: those that are not complete yet, None for all. `accepted` is set when the engine has accepted them.

        Raises the engine's errors, and RequestTimeoutError at the deadline or when more than `max_unread_bytes` of
        pieces are unread; the choices are then cancelled.
        """
        choices = generation.choices if choices is None else choices
        run = ChoiceRun(self._engine, self._max_unread_bytes, recorder)
        error = CANCELLED
        left = len(choices)
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        with self.activity.one():
            try:
                seconds = None if generation.deadline is None else max(0.0, generation.deadline - time.time())
                deadline = None if seconds is None else loop.time() + seconds
                late = RequestTimeoutError(f"not finished within {generation.timeout or seconds or 0.0:.6g} s")
                try:
                    async with asyncio.timeout_at(deadline):
                        await run.submit(choices)
                except TimeoutError as timeout:
                    raise late from timeout
                if accepted is not None:
                    accepted.set()
                if deadline is not None:
                    timer = loop.call_at(deadline, run.fail, late)
                while left:
                    pieces = await run.next_pieces()
                    left -= sum(piece.finish_reason is not None for piece in pieces)
                    yield pieces
            except Exception as failure:
                error = recorded(failure)
                raise
            finally:
                if timer is not None:
                    timer.cancel()
                run.cancel()
                if recorder is not None and left and self.is_stopped:
                    recorder.interrupt()
                elif recorder is not None:
                    recorder.end("" if left == 0 else error)
