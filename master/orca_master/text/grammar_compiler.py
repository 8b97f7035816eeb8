"""`GrammarCompiler`: from a client's grammar to the matcher of an answer, with bounded time, memory and cache.

A new grammar is compiled twice: first in a process of its own (grammar_process.py), which refuses what is invalid, slow
or large, and then on a thread of the master, where llguidance releases the interpreter lock. Copies of a
compiled grammar cost microseconds, so all answers to it, also of later requests, begin with a copy from the cache.
API keys take turns, so that the new grammars of one, however slow, delay another's by one grammar of each key.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer

from orca_master.bodies.fair_turns import FairTurns, WorkInTurn
from orca_master.errors import EngineUnavailableError, QueueFullError, RequestError
from orca_master.scheduling.allowed_tokens import AllowedTokens
from orca_master.scheduling.constraint import MAX_GRAMMAR_BYTES, Grammar, GrammarKind
from orca_master.scheduling.thinking import ThinkingBudget
from orca_master.text.compiled_grammar import CompiledGrammar, OwnStates
from orca_master.text.grammar_process import CPU_SECONDS, MEMORY_BYTES, compiled, load_tokenizer
from orca_master.text.json_spaces import JsonSpaces
from orca_master.text.process_frames import LENGTH_BYTES, encode_frame
from orca_master.text.reasoning import BEGIN, END
from orca_master.text.thinking_tracker import ThinkingTracker
from orca_master.text.token_matcher import NONE_ALLOWED, TokenMatcher
from orca_master.threads import start_process, started_threads

MAX_CACHED = 64
"""Maximum number of compiled grammars that are kept, the last ones that were used; each takes up to 35 megabytes."""
MAX_WAITING = 256
"""Maximum number of grammars that wait for the process. Those of one API key are at most half of them."""
MAX_CALLERS = 4096
"""Maximum number of requests that wait for grammars, not yet in a queue. Those of one API key are at most half."""
RESUMED_ATTEMPTS, PAUSE_SECONDS = 10, 1.0
"""How often a grammar of an accepted request is tried while no process can compile it, and the time between."""
WALL_SECONDS = 60.0
"""Timeout of an exchange with the process, longer than that of its children."""

_Key = tuple[str, str, Grammar]
"""Owner, field and grammar: callers with equal ones wait for the same result."""


class GrammarCompiler:
    """Compiles grammars for the tokenizer of `model_path`. Used on one event loop, after `prepare`.

    `note` is called with "compiled", "cached" or "refused" for each request.
    """

    def __init__(self, model_path: Path, note: Callable[[str], object]) -> None:
        self._model_path = model_path
        self._note = note
        self._thread = started_threads(1, "grammars")
        self._tokenizer: LLTokenizer | None = None
        self._spaces: JsonSpaces | None = None
        self._ends: tuple[int, ...] = ()
        self._unusable = "the model is not loaded yet"
        """Why there is no `_tokenizer`."""
        self._cache: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._own_states = OwnStates()
        self._process: asyncio.subprocess.Process | None = None
        self._turns = FairTurns()
        self._compiling = dict[_Key, WorkInTurn[CompiledGrammar]]()
        """Those that wait or are compiled."""
        self._is_closed = False

    async def prepare(self) -> None:
        """Load the tokenizer, before requests are served: that holds the interpreter lock."""
        loop = asyncio.get_running_loop()
        try:
            tokenizer, self._ends = await loop.run_in_executor(self._thread, load_tokenizer, self._model_path)
            self._spaces = await loop.run_in_executor(self._thread, JsonSpaces, tokenizer)
            self._tokenizer = tokenizer
        except Exception as error:  # only structured output needs this tokenizer, and a model's files are untrusted
            self._unusable = str(error) or type(error).__name__

    async def compile(
        self, grammar: Grammar, vocabulary_size: int, tokens: Sequence[int] | None = None
    ) -> TokenMatcher:
        """Return a matcher to which `tokens` are appended: those of a request that an earlier master had accepted.

        Such a request waits however many others do: see Submission.generated. Raises RequestError for a grammar that
        cannot be compiled, QueueFullError if too many grammars or requests wait, and EngineUnavailableError if the
        process cannot be started, ends or does not answer, or after `close`.
        """
        if self._tokenizer is None:
            raise RequestError(f"{grammar.field}: {self._unusable}", grammar.field)
        if (size := self._tokenizer.vocab_size) != vocabulary_size:
            message = f"{grammar.field}: the model has {vocabulary_size} tokens and its tokenizer {size}"
            raise RequestError(message, grammar.field)
        present = self._cache.get(grammar)
        if present is None:
            if tokens is None:
                self._check_room(grammar)
            present = await self._compile_anew(grammar, self._tokenizer, 1 if tokens is None else RESUMED_ATTEMPTS)
        else:
            self._note("cached")
            self._cache.move_to_end(grammar)
        if not tokens:
            return TokenMatcher(present, self._ends)
        return await asyncio.get_running_loop().run_in_executor(self._thread, TokenMatcher, present, self._ends, tokens)

    async def check_begins(self, matcher: TokenMatcher, allowed: AllowedTokens, vocabulary_size: int) -> None:
        """Raise RequestError if no answer of a new matcher begins with one of `allowed`."""
        if not allowed:
            return
        loop = asyncio.get_running_loop()
        if not await loop.run_in_executor(self._thread, matcher.can_go_on, allowed, vocabulary_size):
            raise RequestError(NONE_ALLOWED, "allowed_token_ids")

    async def tracker(self, budget: ThinkingBudget, tokens: Sequence[int] | None) -> ThinkingTracker:
        """Return a tracker of an answer's reasoning, to which `tokens` are appended; raise RequestError."""
        if (tokenizer := self._tokenizer) is None:
            raise RequestError(f"thinking_token_budget: {self._unusable}", "thinking_token_budget")

        def text_of(token: int) -> str:
            text = tokenizer.decode_bytes([token]).decode("latin-1")
            # Other special tokens are no part of the text in which the reasoning is found.
            return "" if tokenizer.is_special_token(token) and text not in (BEGIN, END) else text

        if not tokens:
            return ThinkingTracker(budget, text_of)
        # Some microseconds for each token: the loop serves others meanwhile.
        return await asyncio.get_running_loop().run_in_executor(self._thread, ThinkingTracker, budget, text_of, tokens)

    async def close(self) -> None:
        """End the process."""
        self._is_closed = True
        await self._end()
        self._thread.shutdown(wait=False)

    def _check_room(self, grammar: Grammar) -> None:
        """Raise QueueFullError if another request of its API key cannot wait, or another grammar."""
        owner, compiling = grammar.owner, self._compiling.get(_key(grammar))
        of_owner = [work for (other, *_), work in self._compiling.items() if other == owner]
        if sum(work.num_callers for work in self._compiling.values()) >= MAX_CALLERS:
            raise QueueFullError(f"{MAX_CALLERS} requests wait for grammars, the limit")
        if owner and sum(work.num_callers for work in of_owner) >= MAX_CALLERS // 2:
            raise QueueFullError(f"{MAX_CALLERS // 2} requests of this API key wait for grammars, the limit of a key")
        if compiling is not None and not compiling.is_abandoned:
            return
        if len(self._compiling) > MAX_WAITING:  # and one is compiled
            raise QueueFullError(f"{MAX_WAITING} grammars wait to be compiled, the limit")
        if owner and len(of_owner) > MAX_WAITING // 2:
            raise QueueFullError(f"{MAX_WAITING // 2} grammars of this API key wait to be compiled, the limit of a key")

    async def _compile_anew(self, grammar: Grammar, tokenizer: LLTokenizer, num_attempts: int) -> CompiledGrammar:
        """Compile a grammar that is not in the cache; try again while no process can compile it."""
        while num_attempts > 1 and not self._is_closed:
            with contextlib.suppress(EngineUnavailableError):
                return await self._compile_once(grammar, tokenizer)
            num_attempts -= 1
            await asyncio.sleep(PAUSE_SECONDS)
        return await self._compile_once(grammar, tokenizer)

    async def _compile_once(self, grammar: Grammar, tokenizer: LLTokenizer) -> CompiledGrammar:
        if len(grammar.text.encode("utf-8", "surrogatepass")) > MAX_GRAMMAR_BYTES:
            raise self._refusal(grammar, f"it has more than {MAX_GRAMMAR_BYTES} bytes")
        key = _key(grammar)
        compiling = self._compiling.get(key)
        if compiling is None or compiling.is_abandoned:
            in_turn = partial(self._compile_in_turn, grammar, tokenizer)
            compiling = self._compiling[key] = WorkInTurn(self._turns, grammar.owner, in_turn)
            compiling.on_end(partial(self._forget, key, compiling))
            return await compiling.result()
        try:  # another choice of the request, or another request of the owner
            grammar_of_other = await compiling.result()
        except RequestError:
            self._note("refused")
            raise
        self._note("cached")
        return grammar_of_other

    def _forget(self, key: _Key, ended: WorkInTurn[CompiledGrammar]) -> None:
        if self._compiling.get(key) is ended:
            del self._compiling[key]

    async def _compile_in_turn(self, grammar: Grammar, tokenizer: LLTokenizer) -> CompiledGrammar:
        if (present := self._cache.get(grammar)) is not None:  # an equal grammar was in turn before
            self._cache.move_to_end(grammar)
            self._note("cached")
            return present
        frame = {"kind": grammar.kind.value, "text": grammar.text, "reasoning": grammar.reasoning}
        answer = await self._exchange(frame)
        if "grammar" not in answer:
            beyond = f"it needs more than {CPU_SECONDS:g} s of processor time or {MEMORY_BYTES >> 20} MiB of memory"
            raise self._refusal(grammar, str(answer.get("error", beyond))[:1000], answer.get("field", ""))
        loop = asyncio.get_running_loop()
        compile_again = partial(compiled, tokenizer, answer["grammar"])
        spaces = self._spaces if grammar.kind in (GrammarKind.JSON, GrammarKind.CALLS) else None
        made = await loop.run_in_executor(self._thread, CompiledGrammar, compile_again, self._own_states, spaces)
        if made.error:  # the process had the same tokenizer and limits
            raise self._refusal(grammar, made.error[:1000])
        self._note("compiled")
        self._cache[grammar] = made  # before the next turn
        while len(self._cache) > MAX_CACHED:
            self._cache.popitem(last=False)
        return made

    def _refusal(self, grammar: Grammar, reason: str, field: str = "") -> RequestError:
        """Return the error about a grammar, or about the schema in a `field` of the request."""
        self._note("refused")
        noun, field = ("schema", field) if field else (grammar.kind.noun, grammar.field)
        return RequestError(f"{field}: the {noun} cannot be compiled: {reason}", field.partition(".")[0])

    async def _exchange(self, frame: dict[str, str]) -> dict[str, Any]:
        """Return the answer to one frame, {} if the limits of its child were too low; raise EngineUnavailableError.

        A process that does not answer is killed.
        """
        if self._is_closed:
            raise EngineUnavailableError("the server ends")
        try:
            process = await self._started()
        except OSError as error:  # a limit of descriptors or processes is reached
            message = f"the process that compiles grammars does not start: {error.strerror}"
            raise EngineUnavailableError(message) from error
        answer = None if process is None else await _ask(process, frame)
        if answer is None:
            await self._end()
            raise EngineUnavailableError("the process that compiles grammars has ended or does not answer")
        if "unavailable" in answer:
            raise EngineUnavailableError(f"the grammar is not compiled: {answer['unavailable']}")
        return answer

    async def _started(self) -> asyncio.subprocess.Process | None:
        """Return the process once it has loaded the tokenizer, None if it ends before; raise EngineUnavailableError."""
        if self._process is not None and self._process.returncode is None:
            return self._process
        self._process = await start_process(
            *(sys.executable, "-P", "-m", "orca_master.text.grammar_process", str(self._model_path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        first = await _ask(self._process, None)
        if first:
            await self._end()
            message = f"the process that compiles grammars cannot use the tokenizer: {first['error']}"
            raise EngineUnavailableError(message)
        return None if first is None else self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _key(grammar: Grammar) -> _Key:
    return grammar.owner, grammar.field, grammar


async def _ask(process: asyncio.subprocess.Process, frame: dict[str, str] | None) -> dict[str, Any] | None:
    """Return the answer to a frame, or with None the first one; None if the process ends or does not answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WALL_SECONDS):
            if frame is not None:
                process.stdin.write(encode_frame(frame))
                await process.stdin.drain()
            size = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
            answer: dict[str, Any] = json.loads(await process.stdout.readexactly(size))
            return answer
    except (TimeoutError, OSError, asyncio.IncompleteReadError):
        return None
