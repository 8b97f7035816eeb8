"""`tokenization_kwargs` of `LLM`: prompts are cut as those over HTTP, against an engine with a scripted answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from orca_master.errors import RequestError
from orca_master.llm_messages import SamplingParams
from support.scripted_engine import END, Scripted, llm_of, make_model
from tokenizers import Tokenizer, processors

CONTEXT = 10_000
"""Of the scripted engine."""
LETTERS = "abcdefgh"


@pytest.fixture
def scripted(tmp_path) -> Scripted:
    """Return a model whose tokenizer adds <s> before a text; texts to embed end with </s>."""
    model = make_model(tmp_path, "{{ messages[0].content }}", ["<s>", "</s>"])
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    begin = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[begin])
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text('{"add_eos_token": true, "eos_token": "</s>"}')
    return Scripted(model, f"four{END}")


@pytest.fixture
def llm(scripted) -> Iterator[Any]:
    with llm_of(scripted) as made:
        yield made


def ids(scripted: Scripted, text: str) -> list[int]:
    return scripted.codec.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("options", "of_text", "of_ids"),
    [
        (None, "<s>abcdefgh", "abcdefgh"),
        ({}, "<s>abcdefgh", "abcdefgh"),
        ({"truncate_prompt_tokens": None}, "<s>abcdefgh", "abcdefgh"),
        ({"truncate_prompt_tokens": 4}, "<s>fgh", "efgh"),
        ({"truncate_prompt_tokens": 4, "truncation_side": "right"}, "<s>abc", "abcd"),
        ({"truncate_prompt_tokens": -1}, "<s>abcdefgh", "abcdefgh"),
    ],
)
def test_prompts_are_cut(scripted, llm, options, of_text, of_ids):
    """Their outputs have the whole text, and the tokens that remain."""
    tokens = ids(scripted, LETTERS)
    prompts: list[Any] = [LETTERS, {"prompt": LETTERS}, tokens, {"prompt_token_ids": tokens, "prompt": LETTERS}]
    outputs = llm.generate(prompts, tokenization_kwargs=options)
    assert [output.prompt for output in outputs] == [LETTERS, LETTERS, None, LETTERS]
    expected = [ids(scripted, text) for text in (of_text, of_text, of_ids, of_ids)]
    assert [output.prompt_token_ids for output in outputs] == expected
    assert [list(submission.prompt) for submission in scripted.engine.submissions] == expected


def test_conversations_are_cut_after_the_chat_template(scripted, llm):
    message = {"role": "user", "content": LETTERS}
    [output] = llm.chat([message], tokenization_kwargs={"truncate_prompt_tokens": 3})
    assert (output.prompt, output.prompt_token_ids) == (LETTERS, ids(scripted, "fgh"))


@pytest.mark.parametrize(
    ("options", "of_text", "of_ids"),
    [
        (None, "<s>abcdefgh</s>", "abcdefgh"),
        ({"truncate_prompt_tokens": 4}, "<s>ab</s>", "abcd"),
        ({"truncate_prompt_tokens": 4, "truncation_side": "left"}, "<s>gh</s>", "efgh"),
    ],
)
def test_prompts_to_embed_are_cut_on_the_right(scripted, llm, options, of_text, of_ids):
    outputs = llm.embed([LETTERS, ids(scripted, LETTERS)], tokenization_kwargs=options)
    assert [output.prompt_token_ids for output in outputs] == [ids(scripted, of_text), ids(scripted, of_ids)]


@pytest.mark.parametrize(
    ("sampling", "count"), [({}, 16), ({"max_tokens": 100}, 100), ({"max_tokens": None, "min_tokens": 7}, 7)]
)
def test_all_that_fits_beside_the_answer(scripted, llm, sampling, count):
    llm.generate([[65] * 2 * CONTEXT], SamplingParams(**sampling), tokenization_kwargs={"truncate_prompt_tokens": -1})
    [submission] = scripted.engine.submissions
    assert (len(submission.prompt), submission.max_gen_tokens) == (CONTEXT - count, count)
    [output] = llm.embed([[65] * 2 * CONTEXT], tokenization_kwargs={"truncate_prompt_tokens": -1})
    assert len(output.prompt_token_ids) == CONTEXT


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens: .* send at least 1, or -1"),
        ({"truncate_prompt_tokens": CONTEXT}, "truncate_prompt_tokens: 10000 tokens of the prompt .* for the answer"),
        ({"truncation_side": "top"}, "truncation_side: Input should be 'left' or 'right'"),
        ({"padding": "max_length"}, "padding: this field is unknown or not supported"),
    ],
)
def test_what_is_refused(llm, options, words):
    with pytest.raises(RequestError, match=f"^{words}"):
        llm.generate("a", tokenization_kwargs=options)
