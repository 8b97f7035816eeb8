"""The longest text that is embedded, by the file of sentence-transformers, on its way to a response."""

from __future__ import annotations

import asyncio

import pytest
from openai import BadRequestError
from orca_master.errors import ConfigurationError
from orca_master.text.sentence_file import FILE, read_sentence_file
from support.scripted_engine import END, MODEL, Scripted, make_model


@pytest.mark.parametrize(
    ("content", "most"),
    [
        ('{"max_seq_length": 512, "do_lower_case": false}', 512),
        ('{"max_seq_length": null}', None),
        ("{}", None),
        (None, None),
    ],
)
def test_the_number_of_the_file(tmp_path, content, most):
    if content is not None:
        (tmp_path / FILE).write_text(content)
    assert read_sentence_file(tmp_path).max_seq_length == most


@pytest.mark.parametrize("content", ['{"max_seq_length": 0}', '{"max_seq_length": "512"}', "[]", "{"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ConfigurationError, match=FILE):
        read_sentence_file(tmp_path)


@pytest.mark.parametrize(("lower", "text"), [("true", "text"), ("false", "Text"), ("null", "Text")])
def test_texts_are_in_lower_case_if_the_file_says_so(tmp_path, lower, text):
    (tmp_path / FILE).write_text(f'{{"do_lower_case": {lower}}}')
    scripted = Scripted(make_model(tmp_path, ""), END)
    expected = scripted.codec.encode(text)

    async def run() -> None:
        async with scripted as client:
            await client.embeddings.create(model=MODEL, input=["Text"])
            assert list(scripted.engine.submissions[-1].prompt) == expected
            await client.completions.create(model=MODEL, prompt="Text")
            assert list(scripted.engine.submissions[-1].prompt) == scripted.codec.encode("Text"), "not of other routes"

    asyncio.run(asyncio.wait_for(run(), 60))
    assert scripted.codec.encode_to_embed("Text") == expected


def test_a_longer_text_is_refused(tmp_path):
    (tmp_path / FILE).write_text('{"max_seq_length": 4}')
    scripted = Scripted(make_model(tmp_path, ""), "")

    async def run() -> None:
        async with scripted as client:
            embedded = await client.embeddings.create(model=MODEL, input=["text", "a"])
            assert len(embedded.data) == 2
            with pytest.raises(BadRequestError, match="input: a text has 5 tokens, at most 4 are possible") as refused:
                await client.embeddings.create(model=MODEL, input=["a", "texts"])
            assert (refused.value.param, refused.value.code) == ("input", "context_length_exceeded")

    asyncio.run(run())
