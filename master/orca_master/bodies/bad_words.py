"""`BadWords`: the field `bad_words` of request bodies, texts that an answer does not contain, as in vLLM."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from orca_master.bodies.lengths import at_most, at_most_characters

MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARACTERS = 64
"""Maximum length of a bad word. The event loop tokenizes all words, and compares them with the end of the answer."""


def _not_blank(word: str) -> str:
    if not word.strip():
        raise ValueError("a bad word must have a character that is not white space")
    return word


BadWord = Annotated[
    str,
    Field(json_schema_extra={"minLength": 1, "maxLength": MAX_BAD_WORD_CHARACTERS}),
    at_most_characters(MAX_BAD_WORD_CHARACTERS),
    AfterValidator(_not_blank),
]
BadWords = Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS, fail_fast=True), at_most(MAX_BAD_WORDS)]
