"""`LLM`: the engine in Python, without HTTP, with the same master and workers as `orca serve`.

    with LLM("path/to/model", pipeline_parallel_size=2) as llm:
        for output in llm.generate(["Once", "Twice"], SamplingParams(max_tokens=20)):
            print(output.outputs[0].text)

The names of `generate`, `chat` and `embed` follow vLLM, those of the engine's options ORCA (docs/how-to/python.md). Any
thread may create and use an `LLM`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orca_contract.model_choices import (
    Backend,
    Device,
    Dtype,
    KvCacheDtype,
    PoolingChoice,
    Quantization,
)

from orca_master.commands.local_workers import LocalWorkers
from orca_master.commands.offline_config import offline_config
from orca_master.commands.preflight import check
from orca_master.commands.server import make_engine
from orca_master.endpoint.chat import ROOM
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.config import EndpointConfig
from orca_master.endpoint.embeddings import EmbeddingRun, Input, check_inputs, new_id, submissions_of, unit_vector
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.generation import Generation, salt_of
from orca_master.endpoint.prompt_logprobs import TokenTexts
from orca_master.endpoint.token_choice import check_min_tokens
from orca_master.engine.engine_thread import EngineThread
from orca_master.errors import ConfigurationError, RequestError
from orca_master.llm_messages import (
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Prompt,
    PromptDictionary,
    RequestOutput,
    SamplingParams,
    chat_of,
    conversations_of,
    output_of,
    parameters_of,
    request_of,
)
from orca_master.llm_options import model_options
from orca_master.llm_progress import UseTqdm, prompts_display
from orca_master.llm_prompts import PromptReader, listed, rendered
from orca_master.loop_thread import LoopThread
from orca_master.metrics.prometheus import Metrics
from orca_master.text.chat_template import ChatTemplate
from orca_master.text.pooling_file import pooling_of
from orca_master.text.tokenizer import TextCodec

CLOSED = "the LLM is closed"


class LLM:
    """Workers and engine of one model; `close` or the end of the `with` block ends them.

    The end of the last reference to an LLM ends them, too, but does not wait for it. Raises ConfigurationError for an
    invalid model or option.
    """

    def __init__(
        self,
        model: str | Path,
        pipeline_parallel_size: int = 1,
        tensor_parallel_size: int = 1,
        dtype: Dtype = "auto",
        max_model_len: int | None = None,
        device: Device = "cpu",
        quantization: Quantization = "none",
        kv_cache_dtype: KvCacheDtype = "auto",
        communication_backend: Backend | None = None,
        lora_modules: Mapping[str, str | Path] = MappingProxyType({}),
        speculative_model: str | Path | None = None,
        embedding_pooling: PoolingChoice = "auto",
        reasoning_parser: str = "none",
        **engine: Any,
    ) -> None:
        """Start workers and engine; `engine` takes the options in offline_config.py (`max_batch_size` …).

        `lora_modules`: the folders of adapters (LoRA) in PEFT's format, by the names that `generate` takes.
        `speculative_model`: the folder of a draft model with the same tokens, for `speculative_tokens` of at least 1.
        `embedding_pooling`, `reasoning_parser`: see `--embedding-pooling`, `--reasoning-parser`.
        """
        engine_config = offline_config(engine)
        options = model_options(
            engine_config,
            model=model,
            pipeline_parallel_size=pipeline_parallel_size,
            tensor_parallel_size=tensor_parallel_size,
            dtype=dtype,
            max_model_len=max_model_len,
            device=device,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            communication_backend=communication_backend,
            lora_modules=lora_modules,
            speculative_model=speculative_model,
            embedding_pooling=embedding_pooling,
            reasoning_parser=reasoning_parser,
        )
        check(*options.checks)
        path, num_partitions = options.folder, options.pipeline_parallel_size
        self._loop = loop = LoopThread("llm", CLOSED)
        self._closing = threading.RLock()
        self._stack = contextlib.ExitStack()
        self._stack.callback(loop.close)
        try:
            # Workers end with the thread that starts them, and the caller's thread may end before the LLM.
            async def start() -> LocalWorkers:
                return self._stack.enter_context(LocalWorkers(num_partitions))

            workers = self._loop.run(start())
            topology = options.topology(workers.addresses)
            codec, pooling = TextCodec(path), pooling_of(path, options.embedding_pooling)

            async def make() -> tuple[EngineThread, Endpoint]:
                config = EndpointConfig(
                    model_names=(path.name,),
                    adapters=tuple(options.adapters),
                    embedding_pooling=pooling,
                    reasoning_parser=options.reasoning_parser,
                )
                thread = make_engine(topology, engine_config, Metrics(path.name))
                return thread, Endpoint(config, thread, codec, ChatTemplate(path, None))

            master, self._endpoint = self._loop.run(make())
            template = self._endpoint.template  # whose process the first chat starts
            self._stack.callback(lambda: loop.submit(template.__aexit__(None, None, None)).result())
            self._stack.callback(lambda: loop.submit(master.stop(CLOSED)).result())
            loop.run(master.start())
        except BaseException:
            self._stack.close()
            raise
        # What it gets must not refer to this LLM.
        weakref.finalize(self, _abandon, loop, self._closing, self._stack).atexit = False

    def generate(
        self,
        prompts: str | PromptDictionary | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        model: str | None = None,
        *,
        use_tqdm: UseTqdm = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Return one output per prompt, in order; raise RequestError.

        EngineError: workers fail on a prompt. EngineUnavailableError: a worker has ended; then `close` is all that is
        left. RuntimeError: after `close`, and in a forked process, which has no engine.
        `sampling_params` apply to all prompts, or are a sequence with one entry per prompt; by default, the parameters
        of the model's generation_config.json apply. `model`: name of the adapter for all prompts, or of the model's
        folder; None: the model. `use_tqdm`: see UseTqdm; `tokenization_kwargs`: see TokenizationOptions.
        """
        self._check(model)
        several, reader = listed(prompts), PromptReader(self._endpoint, tokenization_kwargs)
        given = SamplingParams(**self._endpoint.codec.sampling_defaults) if sampling_params is None else sampling_params
        parameters = parameters_of(given, len(several))
        prepared = [self._generation(reader, *entry, model) for entry in zip(several, parameters, strict=True)]
        collected = self._loop.run(self._collect_all([generation for _, generation in prepared], use_tqdm))
        texts = TokenTexts(self._endpoint.codec)
        return [
            output_of(text, list(generation.prompts[0]), choices, sampling, texts)
            for (text, generation), choices, sampling in zip(prepared, collected, parameters, strict=True)
        ]

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        model: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Return an answer to each conversation, a list of messages with `role` and `content`, or to a single one.

        The model's chat template renders them, with `chat_template_kwargs`; otherwise as `generate`.
        """
        self._check(model)
        bodies = [chat_of(conversation, chat_template_kwargs or {}) for conversation in conversations_of(messages)]
        prompts = self._loop.run(rendered(self._endpoint, bodies))
        return self.generate(
            prompts, sampling_params, model, use_tqdm=use_tqdm, tokenization_kwargs=tokenization_kwargs
        )

    def embed(
        self,
        prompts: str | PromptDictionary | Sequence[Prompt],
        model: str | None = None,
        *,
        use_tqdm: UseTqdm = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Return a vector of length 1 for each prompt, in order. Parameters and errors are those of `generate`."""
        self._check(model)
        reader = PromptReader(self._endpoint, tokenization_kwargs, embeds=True)
        inputs = [reader.read(prompt)[1] for prompt in listed(prompts)]
        sums = self._loop.run(self._pooled(inputs, model, use_tqdm))
        vectors = [EmbeddingOutput(unit_vector(values).tolist()) for values in sums]
        return [EmbeddingRequestOutput(tokens, vector) for tokens, vector in zip(inputs, vectors, strict=True)]

    def close(self) -> None:
        """Stop engine and workers; generations that still run end with an error. Do nothing in a forked process."""
        if not self._loop.is_elsewhere:
            _end(self._loop, self._closing, self._stack)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check(self, model: str | None) -> None:
        """Raise RuntimeError if the LLM is closed, RequestError for a name that is not loaded."""
        self._loop.check()
        names = self._endpoint.models.numbers(None)
        if model is not None and not (isinstance(model, str) and model in names):
            raise RequestError(f"model: {model!r} is not loaded, choose from {', '.join(map(repr, names))}", "model")

    async def _pooled(self, inputs: list[list[int]], model: str | None, use_tqdm: UseTqdm) -> list[array[float]]:
        if not inputs:
            return []
        endpoint = self._endpoint
        of_prompts = [Input("input", tokens) for tokens in inputs]
        check_inputs(of_prompts, endpoint.engine.status, endpoint.codec.max_embedded_tokens)
        adapter, pooling = endpoint.models.number_of(model, None), endpoint.config.embedding_pooling
        name, salt = new_id("embd"), salt_of("", None)
        submissions = submissions_of(name, inputs, pooling, 0, salt, adapter, time.monotonic())
        with prompts_display(use_tqdm, len(inputs)) as note:
            return await EmbeddingRun(endpoint.engine, submissions, note).run()

    def _generation(
        self, reader: PromptReader, prompt: Prompt, sampling: SamplingParams, model: str | None
    ) -> tuple[str | None, Generation]:
        """Return the prompt's text, if any, and the generation of its answer."""
        body = request_of(sampling, model)
        most = max(1, body.min_tokens) if sampling.max_tokens is None else body.max_tokens
        text, tokens = reader.read(prompt, most)
        if sampling.max_tokens is None:
            room = self._endpoint.engine.status.longest - len(tokens)
            most = room if room > 0 else most  # the engine refuses the prompt's length
            check_min_tokens(body, most, ROOM)
        return text, self._endpoint.generator.prepare("llm", body, [tokens], most, body.logprobs)

    async def _collect_all(self, generations: list[Generation], use_tqdm: UseTqdm) -> list[list[list[Piece]]]:
        try:
            with prompts_display(use_tqdm, len(generations)) as note:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._collect(generation, note)) for generation in generations]
        except BaseExceptionGroup as errors:  # the group has cancelled the others
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _collect(self, generation: Generation, note: Callable[[], object]) -> list[list[Piece]]:
        collected: list[list[Piece]] = [[] for _ in generation.choices]
        async for pieces in self._endpoint.generator.pieces(generation):
            for piece in pieces:
                collected[piece.index].append(piece)
        note()
        return collected


def _end(loop: LoopThread, closing: threading.RLock, stack: contextlib.ExitStack) -> None:
    """Stop engine, workers and loop of an LLM."""
    loop.refuse()
    with closing:  # another thread that closes, too, waits for the end
        stack.close()


def _abandon(loop: LoopThread, closing: threading.RLock, stack: contextlib.ExitStack) -> None:
    """Stop those of an LLM that nobody has closed, on a thread of its own: the last reference may end on any."""
    with contextlib.suppress(RuntimeError):  # it is closed, or its process has forked this one
        loop.check()
        threading.Thread(target=_end, args=(loop, closing, stack), name="llm-end", daemon=True).start()


__all__ = ["LLM", "CompletionOutput", "ConfigurationError", "RequestError", "RequestOutput", "SamplingParams"]
