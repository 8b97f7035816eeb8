"""Prompts of `LLM`: their forms, and how `tokenization_kwargs` cuts them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from orca_master.bodies.body import Body
from orca_master.bodies.openai_requests import ChatCompletionRequest
from orca_master.bodies.truncation import PromptTokens, TruncationSide, truncation_of
from orca_master.bodies.validation import described
from orca_master.endpoint.embeddings import longest_input
from orca_master.endpoint.endpoint import Endpoint
from orca_master.errors import RequestError
from orca_master.llm_messages import Prompt, PromptDictionary, entries_of


class TokenizationOptions(Body):
    """`tokenization_kwargs`: fields of requests over HTTP, with the same meaning; None: the default."""

    truncate_prompt_tokens: PromptTokens | None = None
    truncation_side: TruncationSide | None = None


class PromptReader:
    """Reads the prompts of one call of a method of `LLM`, and cuts them as its `tokenization_kwargs` says.

    `embeds`: the prompts are embedded. Raises RequestError.
    """

    def __init__(self, endpoint: Endpoint, tokenization_kwargs: Mapping[str, Any] | None, embeds: bool = False) -> None:
        if not isinstance(tokenization_kwargs, Mapping | None):
            raise RequestError("tokenization_kwargs: a dictionary is expected", "tokenization_kwargs")
        try:
            self._options = TokenizationOptions.model_validate(tokenization_kwargs or {})
        except ValidationError as error:
            raise described(error.errors()) from error
        self._codec, status = endpoint.codec, endpoint.engine.status
        self._longest = longest_input(status, self._codec.max_embedded_tokens) if embeds else status.longest
        self._embeds = embeds

    def read(self, prompt: Prompt, num_answer: int = 0) -> tuple[str | None, list[int]]:
        """Return a prompt's text, None without one, and its tokens; raise RequestError.

        `num_answer`: tokens of the answer for which a prompt that is cut leaves room.
        """
        codec, options = self._codec, self._options
        text, tokens = text_and_tokens(prompt, codec.encode_to_embed if self._embeds else codec.encode)
        if (wanted := options.truncate_prompt_tokens) is None:
            return text, tokens
        side = options.truncation_side or ("right" if self._embeds else "left")
        truncation = truncation_of(wanted, side, self._longest, num_answer)
        is_text = ids_of(prompt) is None
        before, after = codec.num_added if is_text else (0, 0)
        ending = len(codec.ending) if is_text and self._embeds else 0
        return text, [*truncation.cut(tokens, before, after + ending)]


async def rendered(endpoint: Endpoint, bodies: Sequence[ChatCompletionRequest]) -> list[PromptDictionary]:
    """Return the prompts that the model's chat template makes of conversations."""
    prompts: list[PromptDictionary] = []
    for body in bodies:
        text = await endpoint.template.render(body.messages, True, body.template_options)
        # The template already contains the special tokens.
        tokens = endpoint.codec.encode(text, add_special_tokens=False, name="messages")
        prompts.append({"prompt": text, "prompt_token_ids": tokens})
    return prompts


def listed(prompts: str | PromptDictionary | Sequence[Prompt]) -> list[Prompt]:
    """Return one prompt or several as a list; raise RequestError."""
    return [prompts] if isinstance(prompts, str | Mapping) else entries_of("prompts", prompts)


def ids_of(prompt: Prompt) -> Any:
    """Return the token ids of a prompt, unchecked; None for a text."""
    fields: Mapping[str, Any] = prompt if isinstance(prompt, Mapping) else {}
    return fields.get("prompt_token_ids") if isinstance(prompt, str | Mapping) else prompt


def text_and_tokens(prompt: Prompt, encode: Callable[[str], list[int]]) -> tuple[str | None, list[int]]:
    """Return a prompt's text, None without one, and its token ids; raise RequestError."""
    fields: Mapping[str, Any] = prompt if isinstance(prompt, Mapping) else {}
    text: Any = prompt if isinstance(prompt, str) else fields.get("prompt")
    ids = ids_of(prompt)
    try:
        if fields.keys() - PromptDictionary.__annotations__.keys():
            raise TypeError
        if ids is None and isinstance(text, str):
            return text, encode(text)
        # Of bytes, array would take the memory.
        if not isinstance(text, str | None) or isinstance(ids, bytes | bytearray):
            raise TypeError
        return text, array("I", ids).tolist()  # TypeError of None
    except (TypeError, OverflowError):
        raise RequestError(
            "prompts: each is a text, a list of token ids, or a dictionary with prompt or prompt_token_ids", "prompts"
        ) from None
