"""An engine that answers every request with given tokens, behind ORCA's HTTP application, for tests of answers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
from fastapi import FastAPI
from orca_contract.state import EngineState
from orca_master.endpoint.application import create_app
from orca_master.endpoint.config import EndpointConfig
from orca_master.endpoint.endpoint import Endpoint
from orca_master.engine.engine_client import EngineClient, EngineStatus
from orca_master.engine.messages import Output, Submission
from orca_master.engine.progress import Progress
from orca_master.engine.recovery import Recovery
from orca_master.llm import CLOSED, LLM
from orca_master.loop_thread import LoopThread
from orca_master.scheduling.request import FinishReason
from orca_master.text.tokenizer import TextCodec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from support.inline_template import InlineTemplate

END = "<|end|>"
MODEL = "scripted"


def make_model(folder: Path, template: str, special_tokens: Sequence[str] = ()) -> Path:
    """Write a tokenizer with one token per byte and these special tokens, the first of which ends answers."""
    tokenizer = Tokenizer(
        models.BPE(
            {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []
        )
    )
    tokenizer.add_special_tokens([END, *special_tokens])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": {tokenizer.token_to_id(END)}}}')
    (folder / "chat_template.jinja").write_text(template)
    return folder


class ScriptedEngine(EngineClient):
    """Answers each request with the tokens of `answer`, and notes the submissions.

    The answer to a text to embed is its activations 3 and 4, in two parts.
    """

    def __init__(self, codec: TextCodec, answer: str, reason: FinishReason = FinishReason.STOP) -> None:
        self.tokens = codec.encode(answer)
        self.reason = reason
        self.submissions: list[Submission] = []
        self.responses: list[tuple[str, int]] = []

    @property
    def status(self) -> EngineStatus:
        return EngineStatus(EngineState.SERVING, "", False, 1000, 10_000, 10_000, Progress(), 100, 10**6, Recovery())

    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        self.submissions.append(submission)
        self.respond(submission, receive)
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        accepted.set_result(None)
        return accepted

    def respond(self, submission: Submission, receive: Callable[[Output], object]) -> None:
        """Let the loop deliver the outputs of a request, each by a callback of its own."""
        for output in self._outputs(submission):
            asyncio.get_running_loop().call_soon(receive, output)

    def release(self, request_id: str, ended_as: str | None) -> None:
        pass

    def note_response(self, route: str, status: int) -> None:
        self.responses.append((route, status))

    async def metrics(self) -> bytes:
        return b""

    def _outputs(self, submission: Submission) -> Iterator[Output]:
        if submission.pooling is not None:
            for part, reason in (((3.0, 0.0), None), ((0.0, 4.0), FinishReason.STOP)):
                yield Output(submission.request_id, None, reason, pooled=array("f", part).tobytes())
            return
        last = len(self.tokens) - 1
        for place, token in enumerate(self.tokens):
            yield Output(submission.request_id, token, self.reason if place == last else None)


class Scripted:
    """The application over a model folder and an engine that gives one answer, and official clients of it."""

    def __init__(
        self,
        model: Path,
        answer: str,
        reason: FinishReason = FinishReason.STOP,
        engine: Callable[[TextCodec, str, FinishReason], ScriptedEngine] = ScriptedEngine,
        **options: Any,
    ) -> None:
        codec = TextCodec(model)
        self.engine = engine(codec, answer, reason)
        self.template = InlineTemplate(model)
        self.endpoint = Endpoint(EndpointConfig((MODEL,), **options), self.engine, codec, self.template)
        self.codec = codec

    async def __aenter__(self) -> openai.AsyncOpenAI:
        await self.template.__aenter__()
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app))
        return openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="-", max_retries=0, http_client=self.http)

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        await self.template.__aexit__(None, None, None)

    @functools.cached_property
    def app(self) -> FastAPI:
        """The application, made when first asked for: 0.03 s of processor time."""
        return create_app(self.endpoint)

    @property
    def prompt(self) -> str:
        """The last prompt as text."""
        return self.codec.decode(list(self.engine.submissions[-1].prompt))


@contextlib.contextmanager
def llm_of(scripted: Scripted) -> Iterator[Any]:
    """Yield an LLM over the engine of `scripted`, without workers."""
    made: Any = object.__new__(LLM)
    made._loop, made._closing = LoopThread("llm", CLOSED), threading.RLock()
    made._stack = contextlib.ExitStack()
    made._stack.callback(made._loop.close)
    made._stack.callback(lambda: made._loop.submit(scripted.template.__aexit__(None, None, None)).result())
    made._endpoint = scripted.endpoint
    yield made
    made.close()
