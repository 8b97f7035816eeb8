"""What `LLM` does before its workers start, and with an error of one prompt; generations are in tests/system."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from orca_master.errors import ConfigurationError, EngineError
from orca_master.llm import LLM


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "fp16"}, "dtype: Input should be 'auto', 'float32', 'bfloat16' or 'float16'"),
        ({"embedding_pooling": "cls"}, "embedding_pooling: 'cls' is not one of auto, last, mean"),
        ({"max_model_len": 0}, "max_?[mM]odel_?[lL]en: Input should be greater than"),
        ({"reasoning_parser": "qwen"}, "reasoning_parser: 'qwen' is not one of deepseek_r1, qwen3, none"),
    ],
)
def test_mistakes_in_the_options_are_named(options, words):
    with pytest.raises(ConfigurationError, match=f"^{words}"):
        LLM("/nowhere", **options)


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
