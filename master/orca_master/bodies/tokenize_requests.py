"""Request bodies of `/tokenize` and `/detokenize`, with vLLM's names and meanings."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from orca_master.bodies.body import Body, Name
from orca_master.bodies.lengths import within_context
from orca_master.bodies.openai_requests import Messages, TemplateOptions, check_ends
from orca_master.bodies.prompts import Text, TokenId
from orca_master.bodies.tools import ToolList


class TokenizeTextRequest(Body):
    """Body of POST /tokenize for a prompt."""

    prompt: Text
    model: Name | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeChatRequest(Body):
    """Body of POST /tokenize for messages, which the chat template renders."""

    messages: Messages
    model: Name | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: TemplateOptions = {}
    tools: ToolList = []
    add_special_tokens: bool = False
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _ends_agree(self) -> TokenizeChatRequest:
        check_ends(self.continue_final_message, self.add_generation_prompt, self.model_fields_set)
        return self


TAGS = ("[with prompt]", "[with messages]")
"""Tags of the two bodies of /tokenize."""


def _kind_of_tokenize(value: Any) -> str:
    return TAGS["messages" in value if isinstance(value, dict) else isinstance(value, TokenizeChatRequest)]


TokenizeRequest = Annotated[
    Annotated[TokenizeTextRequest, Tag(TAGS[0])] | Annotated[TokenizeChatRequest, Tag(TAGS[1])],
    Discriminator(_kind_of_tokenize),
]
"""Body of POST /tokenize."""


class DetokenizeRequest(Body):
    """Body of POST /detokenize."""

    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True), within_context]
