"""The longest text that is embedded, by the file of sentence-transformers, on its way to a response."""

from __future__ import annotations

import asyncio

import pytest
from openai import BadRequestError
from orca_master.errors import ConfigurationError
from orca_master.text.sentence_file import FILE, max_embedded_tokens
from support.scripted_engine import MODEL, Scripted, make_model


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
    assert max_embedded_tokens(tmp_path) == most


@pytest.mark.parametrize("content", ['{"max_seq_length": 0}', '{"max_seq_length": "512"}', "[]", "{"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ConfigurationError, match=FILE):
        max_embedded_tokens(tmp_path)


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
