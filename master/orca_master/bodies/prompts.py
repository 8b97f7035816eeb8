"""`Prompts`: one or several prompts as text or as token ids, the form of OpenAI's `prompt` and `input`.

Source: OpenAI API reference, "Completions" and "Embeddings". Lengths are checked before contents (lengths.py).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo

from orca_master.bodies.lengths import Lengths, at_most, check_text, within_context

MAX_PROMPTS = 1024
Text = Annotated[str, check_text]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
# Most tokenizers return no token for an empty text. The schema's minLength keeps fuzzers from trying only that error.
PromptText = Annotated[Text, Field(json_schema_extra={"minLength": 1})]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True), within_context]


def _check_prompts(prompts: list[str], info: ValidationInfo) -> list[str]:
    Lengths.of(info).check_prompts(sum(map(len, prompts)))
    return prompts


def _kind_of_prompt(value: Any) -> str:
    """Return the tag of the type of the prompts, chosen by its first entry; only that type is validated."""
    if not isinstance(value, list):
        return "[text]"
    first = value[0] if value else 0
    return "[texts]" if isinstance(first, str) else "[prompts]" if isinstance(first, list) else "[tokens]"


_Texts = Annotated[
    list[PromptText],
    Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True),
    at_most(MAX_PROMPTS),
    AfterValidator(_check_prompts),
    Tag("[texts]"),
]
Texts = Annotated[
    Annotated[PromptText, Tag("[text]")] | _Texts,
    Discriminator(lambda value: "[texts]" if isinstance(value, list) else "[text]"),
]
"""One or several texts."""
Prompts = Annotated[
    Annotated[PromptText, Tag("[text]")]
    | Annotated[TokenIds, Tag("[tokens]")]
    | _Texts
    | Annotated[
        list[TokenIds],
        Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True),
        at_most(MAX_PROMPTS),
        Tag("[prompts]"),
    ],
    Discriminator(_kind_of_prompt),
]
