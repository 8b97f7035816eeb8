"""`LLM`: the engine in Python, without HTTP, with the same master and workers as `orca serve`.

    with LLM("path/to/model", pipeline_parallel_size=2) as llm:
        for output in llm.generate(["Once", "Twice"], SamplingParams(max_tokens=20)):
            print(output.outputs[0].text)

The names of `generate` follow vLLM, those of the engine's options ORCA (docs/how-to/python.md). Any thread may create
and use an `LLM`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from orca_contract.model_choices import (
    MAX_NAME_LENGTH,
    Backend,
    Device,
    Dtype,
    KvCacheDtype,
    Quantization,
    adapters_refusal,
    backend_of,
    first_refusal,
)
from orca_contract.topology import AdapterSpec, ModelSpec
from pydantic import ValidationError

from orca_master.bodies.validation import described
from orca_master.commands.local_topology import local_topology
from orca_master.commands.local_workers import LocalWorkers
from orca_master.commands.offline_config import offline_config
from orca_master.commands.preflight import check, draft_command, model_command, text_command
from orca_master.commands.server import make_engine
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.config import EndpointConfig
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.generation import Generation
from orca_master.engine.engine_thread import EngineThread
from orca_master.errors import ConfigurationError, RequestError
from orca_master.llm_messages import (
    CompletionOutput,
    Prompt,
    PromptDictionary,
    RequestOutput,
    SamplingParams,
    output_of,
    request_of,
    text_and_tokens,
)
from orca_master.metrics.prometheus import Metrics
from orca_master.text.chat_template import ChatTemplate
from orca_master.text.tokenizer import TextCodec

T = TypeVar("T")
CLOSED = "the LLM is closed"


class LLM:
    """Workers and engine of one model; `close` or the end of the `with` block ends them.

    Raises ConfigurationError for an invalid model or option.
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
        **engine: Any,
    ) -> None:
        """Start workers and engine; `engine` takes the options in offline_config.py (`max_batch_size` …).

        `lora_modules`: the folders of adapters (LoRA) in PEFT's format, by the names that `generate` takes.
        `speculative_model`: the folder of a draft model with the same tokens, for `speculative_tokens` of at least 1.
        """
        engine_config = offline_config(engine)
        path, backend = Path(model).resolve(), communication_backend or backend_of(device)
        if refusal := first_refusal(
            device,
            backend,
            tensor_parallel_size,
            all_reduce=engine_config.all_reduce,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            attention_backend=engine_config.attention_backend,
        ):
            raise ConfigurationError(refusal)
        adapters = _adapters(lora_modules, path.name)
        if speculative_model is not None and engine_config.speculative_tokens < 1:
            raise ConfigurationError("speculative_model: set speculative_tokens, the most tokens to draft")
        draft = None if speculative_model is None else Path(os.path.abspath(speculative_model))
        try:
            spec = ModelSpec(
                path=str(path),
                served_name=path.name,
                dtype=dtype,
                max_model_len=max_model_len,
                quantization=quantization,
                kv_cache_dtype=kv_cache_dtype,
                adapters=[AdapterSpec(name=name, path=str(folder)) for name, folder in adapters.items()],
                draft_path=None if draft is None else str(draft),
            )
        except ValidationError as error:
            raise ConfigurationError(str(described(error.errors()))) from error
        model_check = model_command(
            path, pipeline_parallel_size, tensor_parallel_size, max_model_len, quantization, device, adapters
        )
        draft_checks = [] if draft is None else [draft_command(draft, tensor_parallel_size, quantization, device)]
        check(model_check, text_command(path, None), *draft_checks)
        self._start_loop()
        try:
            # Workers end with the thread that starts them, and the caller's thread may end before the LLM.
            async def start() -> LocalWorkers:
                return self._stack.enter_context(LocalWorkers(pipeline_parallel_size))

            workers = self._run(start())
            topology = local_topology(
                spec, pipeline_parallel_size, tensor_parallel_size, device, backend, workers.addresses
            )
            codec = TextCodec(path)

            async def make() -> tuple[EngineThread, Endpoint]:
                config = EndpointConfig(model_names=(path.name,), adapters=tuple(adapters))
                thread = make_engine(topology, engine_config, Metrics(path.name))
                return thread, Endpoint(config, thread, codec, ChatTemplate(path, None))

            master, self._endpoint = self._run(make())
            self._stack.callback(lambda: self._submit(master.stop(CLOSED)).result())
            self._run(master.start())
            gc.freeze()  # as in run_server: full collections over permanent objects cost some percent
            self._stack.callback(gc.unfreeze)
        except BaseException:
            self._stack.close()
            raise

    def generate(
        self,
        prompts: str | PromptDictionary | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        model: str | None = None,
    ) -> list[RequestOutput]:
        """Return one output per prompt, in order; raise RequestError, RuntimeError after `close`.

        `sampling_params` apply to all prompts, or are a sequence with one entry per prompt; by default, the parameters
        of the model's generation_config.json apply. `model`: name of the adapter for all prompts, or of the model's
        folder; None: the model.
        """
        if self._closed:
            raise RuntimeError(CLOSED)
        names = self._endpoint.models.numbers(None)
        if model is not None and model not in names:
            raise RequestError(f"model: {model!r} is not loaded, choose from {', '.join(map(repr, names))}", "model")
        prompt_list: Sequence[Prompt] = [prompts] if isinstance(prompts, str | Mapping) else prompts
        given = SamplingParams(**self._endpoint.codec.sampling_defaults) if sampling_params is None else sampling_params
        parameters = [given] * len(prompt_list) if isinstance(given, SamplingParams) else list(given)
        if len(parameters) != len(prompt_list):
            message = f"sampling_params: {len(parameters)} for {len(prompt_list)} prompts"
            raise RequestError(message, "sampling_params")
        inputs = [text_and_tokens(prompt, self._endpoint.codec.encode) for prompt in prompt_list]
        generations = [
            self._generation(tokens, sampling, model) for (_, tokens), sampling in zip(inputs, parameters, strict=True)
        ]
        collected = self._run(self._collect_all(generations))
        return [
            RequestOutput(text, tokens, [output_of(index, pieces) for index, pieces in enumerate(choices)])
            for (text, tokens), choices in zip(inputs, collected, strict=True)
        ]

    def close(self) -> None:
        """Stop engine and workers. Generations that still run end with an error."""
        with self._submitting:
            self._closed = True
        self._stack.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _generation(self, prompt: list[int], sampling: SamplingParams, model: str | None) -> Generation:
        body = request_of(sampling, model)
        room = max(1, self._endpoint.engine.status.longest - len(prompt))  # 1: the engine refuses the prompt's length
        most = room if sampling.max_tokens is None else body.max_tokens
        return self._endpoint.generator.prepare("llm", body, [prompt], most, body.logprobs)

    async def _collect_all(self, generations: list[Generation]) -> list[list[list[Piece]]]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._collect(generation)) for generation in generations]
        except BaseExceptionGroup as errors:  # the group has cancelled the others
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _collect(self, generation: Generation) -> list[list[Piece]]:
        collected: list[list[Piece]] = [[] for _ in generation.choices]
        async for pieces in self._endpoint.generator.pieces(generation):
            for piece in pieces:
                collected[piece.index].append(piece)
        return collected

    def _start_loop(self) -> None:
        """Start the thread of the event loop, which `_stack` ends."""
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = runner.get_loop()

        def serve() -> None:
            with runner:  # whose end cancels the work that is left
                self._loop.run_forever()

        thread = threading.Thread(target=serve, name="llm", daemon=True)
        thread.start()
        self._closed = False
        self._submitting = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._stack.callback(thread.join, 5.0)
        self._stack.callback(self._loop.call_soon_threadsafe, self._loop.stop)

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work` on the event loop; raise RuntimeError if the LLM is closed before."""
        with self._submitting:  # a loop that has ended would never run it
            if self._closed:
                work.close()
                raise RuntimeError(CLOSED)
            running = self._submit(work)
        try:
            return running.result()
        except concurrent.futures.CancelledError:
            raise RuntimeError(CLOSED) from None
        except BaseException:  # also of this thread alone, such as KeyboardInterrupt
            running.cancel()
            raise


def _adapters(lora_modules: Mapping[str, str | Path], model_name: str) -> dict[str, Path]:
    """Return the absolute folders of adapters by name; raise ConfigurationError for a name."""
    for name in lora_modules:
        if not 1 <= len(name) <= MAX_NAME_LENGTH or "=" in name:
            raise ConfigurationError(
                f"lora_modules: {name[:80]!r} is no name of 1 to {MAX_NAME_LENGTH} characters without ="
            )
    if refusal := adapters_refusal([model_name], list(lora_modules)):
        raise ConfigurationError(f"lora_modules: {refusal}")
    # Follows no links: the check of the files refuses a cycle of them.
    return {name: Path(os.path.abspath(folder)) for name, folder in lora_modules.items()}


__all__ = ["LLM", "CompletionOutput", "ConfigurationError", "RequestError", "RequestOutput", "SamplingParams"]
