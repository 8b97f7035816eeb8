"""Log probabilities of prompts in responses: slices, JSON, bounds, and tokens of equal texts."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.endpoint import prompt_logprobs
from orca_master.endpoint.openai_answers import CompletionLogprobs
from orca_master.endpoint.prompt_logprobs import PromptNumbers, TokenTexts, check_size, entries_json, lists_json
from orca_master.errors import RequestError
from orca_master.text.tokenizer import TextCodec
from orca_protos import engine_pb2 as pb
from support.scripted_engine import make_model


@pytest.fixture(scope="module")
def codec(tmp_path_factory) -> TextCodec:
    """One token per byte, in the order of the alphabet, then a special token."""
    return TextCodec(make_model(tmp_path_factory.mktemp("model"), "", ()))


def found_for(prompt: list[int], width: int) -> pb.PromptLogprobs:
    count = max(0, len(prompt) - 1)
    return pb.PromptLogprobs(
        logprob=[-0.5 * place for place in range(count)],
        rank=[place + 1 for place in range(count)],
        likely_token=[(place + other) % 50 for place in range(count) for other in range(width)],
        likely_logprob=[-0.25 * other for _ in range(count) for other in range(width)],
    )


@given(st.lists(st.integers(0, 256), min_size=1, max_size=40), st.integers(0, 4), st.integers(0, 6), st.integers(1, 60))
def test_slices_change_nothing(codec, prompt, width, count, size):
    numbers = PromptNumbers(prompt, found_for(prompt, width), count, TokenTexts(codec))
    whole = CompletionLogprobs()
    entries: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_logprobs, "SLICE_NUMBERS", size)
        for part in numbers.lists():
            assert len(part.tokens) <= max(1, size)
            for name, values in part.model_dump().items():
                getattr(whole, name).extend(values)
        for entry in numbers.entries():
            entries.extend(entry)
        texts = asyncio.run(lists_json(numbers.lists())), asyncio.run(entries_json(numbers.entries()))
    assert json.loads(texts[0]) == whole.model_dump()
    assert json.loads(texts[1]) == json.loads(json.dumps(entries))
    kept = min(width, count)
    assert whole.tokens == [codec.decode([token]) for token in prompt]
    assert whole.token_logprobs == [None, *(-0.5 * place for place in range(len(prompt) - 1))]
    lengths = [len(codec.decode([token], skip_special_tokens=True)) for token in prompt]
    assert whole.text_offset == [sum(lengths[:place]) for place in range(len(prompt))]
    assert numbers.num_characters == sum(lengths)
    assert whole.top_logprobs[0] is entries[0] is None
    for position in range(1, len(prompt)):
        likely = [(position - 1 + other) % 50 for other in range(kept)]
        of_text: dict[str, float] = {}
        for place, token in enumerate(likely):
            of_text.setdefault(codec.decode([token]), -0.25 * place)
        assert whole.top_logprobs[position] == of_text
        assert list(entries[position]) == list(dict.fromkeys([prompt[position], *likely]))
        for place, token in enumerate(likely):
            assert entries[position][token] == {
                "logprob": -0.25 * place, "rank": place + 1, "decoded_token": codec.decode([token])
            }  # fmt: skip
        if prompt[position] not in likely:
            assert entries[position][prompt[position]]["rank"] == position


def test_a_probability_of_zero_is_a_finite_number(codec):
    found = pb.PromptLogprobs(logprob=[-math.inf], rank=[3], likely_token=[5], likely_logprob=[-math.inf])
    numbers = PromptNumbers([1, 2], found, 1, TokenTexts(codec))
    (entry,) = numbers.entries()
    assert entry[1] is not None
    assert [number["logprob"] for number in entry[1].values()] == [-9999.0] * 2
    (part,) = numbers.lists()
    assert part.token_logprobs == [None, -9999.0]


def test_of_tokens_with_one_text_the_likeliest_stays(codec):
    """Halves of characters."""
    texts = TokenTexts(codec)
    broken = [token for token in range(256) if codec.decode([token]) == "\ufffd"][:3]
    assert texts.by_text([*broken, 5], [-0.5, -1.0, -2.0, -3.0]) == {"\ufffd": -0.5, codec.decode([5]): -3.0}


def test_a_model_without_a_tokenizer_has_empty_texts(tmp_path):
    numbers = PromptNumbers([1, 2], found_for([1, 2], 2), 2, TokenTexts(TextCodec(tmp_path)))
    (part,) = numbers.lists()
    assert (part.tokens, part.text_offset) == (["", ""], [0, 0])


def test_the_bound_names_field_and_way_out():
    check_size(2**20, 0, 1, "logprobs")
    with pytest.raises(RequestError, match=r"logprobs: 5 tokens of prompts with 21 .* fewer or shorter") as refused:
        check_size(5, 20, 2**20, "logprobs")
    assert refused.value.field == "logprobs"
