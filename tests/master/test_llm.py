"""What `LLM` does before its workers start, and with an error of one prompt; generations are in tests/system."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from orca_master.errors import ConfigurationError, EngineError
from orca_master.llm import LLM
from orca_master.llm_options import folder_of


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "fp16"}, "dtype: Input should be 'auto', 'float32', 'bfloat16' or 'float16'"),
        ({"embedding_pooling": "cls"}, "embedding_pooling: 'cls' is not one of auto, last, mean"),
        ({"max_model_len": 0}, "max_?[mM]odel_?[lL]en: Input should be greater than"),
        ({"pipeline_parallel_size": 0}, "pipeline_parallel_size: '0' is not a whole number from 1 to"),
        ({"pipeline_parallel_size": 1.5}, "pipeline_parallel_size: '1.5' is not a whole number from 1 to"),
        ({"tensor_parallel_size": -1}, "tensor_parallel_size: '-1' is not a whole number from 1 to"),
        ({"device": None}, "device: 'None' is not one of cpu, cuda$"),
        ({"communication_backend": "mpi"}, "communication_backend: 'mpi' is not one of gloo, nccl$"),
        ({"lora_modules": ["a"]}, r"lora_modules: folders by name are expected, not \['a'\]$"),
        ({"lora_modules": {1: "a"}}, "lora_modules: 1 is no name of 1 to 256 characters without =$"),
        ({"lora_modules": {"sql": None}}, "lora_modules: sql: a path is expected, not None$"),
        ({"speculative_model": 1, "speculative_tokens": 1}, "speculative_model: a path is expected, not 1$"),
        ({"iteration_log": True}, "iteration_log: a path is expected, not True$"),
        ({"reasoning_parser": "qwen"}, "reasoning_parser: 'qwen' is not one of deepseek_r1, qwen3, none"),
    ],
)
def test_mistakes_in_the_options_are_named(options, words):
    with pytest.raises(ConfigurationError, match=f"^{words}"):
        LLM("/nowhere", **options)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (None, "a path is expected, not None"),
        (b"a", "a path is expected, not b'a'"),
        ("a\0b", r"'a\\x00b': a zero byte is not allowed"),
        ("\ud800", r"'\\ud800': no file can have this name"),
    ],
)
def test_what_is_no_folder_of_a_model_is_named(model, words):
    with pytest.raises(ConfigurationError, match=f"^model: {words}$"):
        LLM(model)


def test_a_folder_is_found_behind_a_link_to_elsewhere(tmp_path):
    """`link/..` is the folder that has the target."""
    (tmp_path / "there" / "model").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "there" / "model")
    assert folder_of("model", tmp_path / "link" / ".." / "model") == (tmp_path / "there" / "model").resolve()


def test_the_error_of_one_prompt_cancels_the_others():
    ended = []

    async def pieces(generation: Any) -> AsyncIterator[list[Any]]:
        try:
            if generation.number == 2:
                raise EngineError("workers failed on it")
            await asyncio.sleep(60)
            yield []
        finally:
            ended.append(generation.number)

    llm: Any = object.__new__(LLM)
    llm._endpoint = SimpleNamespace(generator=SimpleNamespace(pieces=pieces))
    generations = [SimpleNamespace(number=number, choices=()) for number in range(4)]
    with pytest.raises(EngineError, match="workers failed"):
        asyncio.run(asyncio.wait_for(llm._collect_all(generations, False), 30))
    assert sorted(ended) == [0, 1, 2, 3]


def test_a_bar_counts_the_prompts_that_are_done():
    async def pieces(generation: Any) -> AsyncIterator[list[Any]]:
        await asyncio.sleep(0)
        yield []

    counts = list[int]()
    bar = SimpleNamespace(update=counts.append, close=lambda: counts.append(-1))
    llm: Any = object.__new__(LLM)
    llm._endpoint = SimpleNamespace(generator=SimpleNamespace(pieces=pieces))
    generations = [SimpleNamespace(choices=()) for _ in range(3)]
    asyncio.run(asyncio.wait_for(llm._collect_all(generations, lambda **_: bar), 30))
    assert counts == [1, 1, 1, -1]
