"""Log probabilities of prompts in responses: slices, JSON, bounds, and tokens of equal texts."""

from __future__ import annotations

import asyncio
import json
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.bodies.openai_requests import CompletionRequest
from orca_master.endpoint import prompt_logprobs
from orca_master.endpoint.choice_run import Choice, Piece
from orca_master.endpoint.completions import CompletionFormat
from orca_master.endpoint.generation import Generation
from orca_master.endpoint.openai_answers import CompletionLogprobs
from orca_master.endpoint.prompt_logprobs import PromptNumbers, TokenTexts, check_size, entries_json, lists_json
from orca_master.errors import RequestError
from orca_master.text.detokenizer import MOST_HELD
from orca_master.text.tokenizer import TextCodec
from orca_protos import engine_pb2 as pb
from support.scripted_engine import make_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers


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
        places = TokenTexts(codec).offsets(0, skip_special_tokens=True)
        for part in numbers.lists(places):
            assert len(part.tokens) <= max(1, size)
            for name, values in part.model_dump().items():
                getattr(whole, name).extend(values)
        for entry in numbers.entries():
            entries.extend(entry)
        places = TokenTexts(codec).offsets(0, skip_special_tokens=True)
        texts = asyncio.run(lists_json(numbers.lists(places))), asyncio.run(entries_json(numbers.entries()))
    assert json.loads(texts[0]) == whole.model_dump()
    assert json.loads(texts[1]) == json.loads(json.dumps(entries))
    kept = min(width, count)
    assert whole.tokens == [codec.decode([token]) for token in prompt]
    assert whole.token_logprobs == [None, *(-0.5 * place for place in range(len(prompt) - 1))]
    offsets = TokenTexts(codec).offsets(0, skip_special_tokens=True)
    assert whole.text_offset == [offsets.next(token) for token in prompt]
    assert whole.top_logprobs[0] is entries[0] is None
    for position in range(1, len(prompt)):
        likely = [(position - 1 + other) % 50 for other in range(kept)]
        of_text: dict[str, float] = {}
        for place, token in enumerate(likely):
            of_text.setdefault(codec.decode([token]), -0.25 * place)
        of_text.setdefault(codec.decode([prompt[position]]), -0.5 * (position - 1))
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
    (part,) = numbers.lists(TokenTexts(codec).offsets(0, skip_special_tokens=True))
    assert part.token_logprobs == [None, -9999.0]


def test_of_tokens_with_one_text_the_likeliest_stays(codec):
    """Halves of characters."""
    texts = TokenTexts(codec)
    broken = [token for token in range(256) if codec.decode([token]) == "\ufffd"][:3]
    likely = [*broken, 5], [-0.5, -1.0, -2.0, -3.0]
    expected = {"\ufffd": -0.5, codec.decode([5]): -3.0}
    assert texts.by_text(*likely, (5, -3.0)) == texts.by_text(*likely, (broken[0], -0.5)) == expected


def test_a_model_without_a_tokenizer_has_empty_texts(tmp_path):
    texts = TokenTexts(TextCodec(tmp_path))
    numbers = PromptNumbers([1, 2], found_for([1, 2], 2), 2, texts)
    (part,) = numbers.lists(texts.offsets(0, skip_special_tokens=True))
    assert (part.tokens, part.text_offset) == (["", ""], [0, 0])


def test_the_bound_names_field_and_way_out():
    check_size(2**20, 1, 1, "logprobs")
    with pytest.raises(RequestError, match=r"logprobs: 5 tokens of prompts with 21 .* fewer or shorter") as refused:
        check_size(5, 21, 2**20, "logprobs")
    assert refused.value.field == "logprobs"


def offsets_in(codec: TextCodec, tokens: list[int]) -> list[int]:
    offsets = TokenTexts(codec).offsets(3, skip_special_tokens=True)
    return [offsets.next(token) for token in tokens]


@given(st.text(max_size=30))
def test_a_token_is_at_the_place_of_its_character(codec, text):
    places = [3 + place for place, character in enumerate(text) for _ in character.encode()]
    assert offsets_in(codec, codec.encode(text)) == places


def test_special_tokens_take_no_place_in_the_text_of_a_prompt(codec):
    assert codec.decode([256], skip_special_tokens=True) == ""
    assert offsets_in(codec, [256, *codec.encode("aé"), 256, *codec.encode("b")]) == [3, 3, 4, 4, 5, 5]


def test_bytes_that_are_no_text_have_places_in_it(codec):
    """Their texts come together, after at most MOST_HELD tokens."""
    broken = next(token for token in range(256) if codec.decode([token, token]) == "\ufffd" * 2)
    places = offsets_in(codec, [broken] * 1000)
    assert places == sorted(places)
    assert 3 + 1000 - MOST_HELD - 1 <= places[-1] <= 3 + 999
    assert offsets_in(codec, [broken, *codec.encode("ab")]) == [3, 3, 5]


def test_a_space_that_begins_a_token_counts(tmp_path):
    """Metaspace drops it from the text of the token alone."""
    model = Tokenizer(models.WordLevel({"▁the": 0, "▁cat": 1, "▁sat": 2}, unk_token="▁the"))
    model.pre_tokenizer, model.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    model.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text("{}")
    assert offsets_in(TextCodec(tmp_path), [0, 1, 2]) == [3, 6, 10]


@pytest.mark.parametrize(
    ("text", "tokens", "places"),
    [
        ("<|user|>hé<|end|>b", ["<|user|>", *"hé", "<|end|>", "b"], [0, 8, 9, 9, 10, 17]),
        ("ab", ["<|end|>", *"ab", "<|end|>"], [0, 0, 1, 2]),
        ("a<|user|> \nb", ["a", "<|user|>", "b"], [0, 1, 9]),
        ("<|user|>ab", ["<|user|>", *" ab"], [0, 8, 8, 9]),
        ("AbC", [*"abc", "<|end|>"], [0, 1, 2, 3]),
        ("a", [*"abc"], [0, 1, 1]),
    ],
    ids=["special tokens", "added tokens", "dropped spaces", "an added space", "other letters", "more letters"],
)
def test_the_tokens_of_a_text_have_places_in_it(tmp_path, text, tokens, places):
    """Whatever the tokenizer adds, drops and changes."""
    codec = TextCodec(make_model(tmp_path, "", ["<|user|>"]))
    offsets = TokenTexts(codec).offsets_in(text)
    assert [offsets.next(token) for part in tokens for token in codec.encode(part)] == places


@pytest.mark.parametrize("stream", [False, True])
def test_offsets_of_each_answer_continue_after_its_own_prompt(codec, stream):
    """Each prompt has characters of several tokens, and a special token that is not in its text, each answer one."""
    body = CompletionRequest(prompt=["a€", "é"], n=2, echo=True, logprobs=0, max_tokens=2)
    prompts = [[256, *codec.encode(text)] for text in body.prompt]
    choices = [cast(Choice, SimpleNamespace(index=index)) for index in range(4)]
    generation = Generation("id", 5, prompts, choices, 2, 2)
    pieces = [
        [
            Piece(
                index, text, token, pb.Logprobs(sampled=-1), None, prompt_logprobs=None if place or index % 2 else found
            )
            for place, (text, token) in enumerate(zip(("", "é"), codec.encode("é"), strict=True))
        ]
        for index in range(4)
        for found in [found_for(prompts[index // 2], 0)]
    ]
    style = CompletionFormat(body, "model", codec)
    offsets: list[list[int]] = [[] for _ in range(4)]
    if stream:
        for piece in [pieces[2][0], pieces[0][0], pieces[3][0], pieces[1][0], *(several[1] for several in pieces)]:
            for chunk in (*style.prompt_chunks(generation, piece), style.chunk(generation, piece)):
                (choice,) = chunk.choices
                assert choice.logprobs is not None
                offsets[choice.index] += choice.logprobs.text_offset
    else:
        for index in range(4):
            style.choice(generation, index, pieces[index])
            fields = asyncio.run(style.long_choice_fields(generation, index, pieces[index]))
            offsets[index] = json.loads(fields["logprobs"])["text_offset"]
    assert offsets == [[0, 0, 1, 1, 1, 2, 2]] * 2 + [[0, 0, 0, 1, 1]] * 2
