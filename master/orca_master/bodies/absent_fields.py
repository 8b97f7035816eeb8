"""Fields of OpenAI's and vLLM's requests that this server does not have.

Clients send many of them with the value that asks for nothing, such as vLLM's default: it is accepted. Another value is
refused with the way out, not ignored, as the answer would not be the one that it asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class AbsentField(NamedTuple):
    """The way out for a value of a field. `neutral`: values that ask for nothing, beside null.

    {} stands for every object without values.
    """

    remedy: str
    neutral: tuple[Any, ...] = ()


AbsentFields = Mapping[str, AbsentField]

_TEMPLATE = AbsentField("start the server with --chat-template FILE")
_PROMPT: AbsentFields = {
    "media_io_kwargs": AbsentField("prompts are texts", ({},)),
    "mm_processor_kwargs": AbsentField("prompts are texts", ({},)),
    "kv_transfer_params": AbsentField("K/V blocks are not moved between servers", ({},)),
    "vllm_xargs": AbsentField("this server has no extensions", ({},)),
}
GENERATING: AbsentFields = {
    **_PROMPT,
    "use_beam_search": AbsentField("beam search is not supported", (False,)),
    "length_penalty": AbsentField("is for beam search, which is not supported", (1,)),
    "spaces_between_special_tokens": AbsentField("only true is supported", (True,)),
    "detokenize": AbsentField("only true is supported: answers are texts", (True,)),
    "logits_processors": AbsentField(
        "requests bring no code: send logit_bias, bad_words, allowed_token_ids or structured_outputs", ([],)
    ),
    "repetition_detection": AbsentField(
        "is not supported: send repetition_penalty or frequency_penalty, and max_tokens as the bound", ({},)
    ),
    "logprob_token_ids": AbsentField("is not supported: send logprobs, or allowed_token_ids with logprobs", ([],)),
    "return_prompt_text": AbsentField(
        "is not supported: send return_token_ids: true, and prompt_token_ids to /detokenize", (False,)
    ),
    "guided_json": AbsentField('send structured_outputs: {"json": …}'),
    "guided_regex": AbsentField('send structured_outputs: {"regex": …}'),
    "guided_choice": AbsentField('send structured_outputs: {"choice": …}'),
    "guided_grammar": AbsentField('send structured_outputs: {"grammar": …}'),
    "guided_decoding_backend": AbsentField("structured_outputs have one backend, llguidance"),
    "guided_whitespace_pattern": AbsentField("is not supported: send structured_outputs without it"),
}
"""Of all routes that generate."""
COMPLETION: AbsentFields = {
    **GENERATING,
    "suffix": AbsentField("is not supported: write the tokens with which this model infills into the prompt", ("",)),
    "extra_args": AbsentField("there are no extensions to take them", ({},)),
    "prompt_embeds": AbsentField("is not supported: send prompt, a text or token ids", ([],)),
}
CHAT: AbsentFields = {
    **GENERATING,
    "add_special_tokens": AbsentField("only false is supported: the chat template adds special tokens", (False,)),
    "echo": AbsentField("is only supported by /v1/completions", (False,)),
    "documents": AbsentField('send chat_template_kwargs: {"documents": …}', ([],)),
    "chat_template": _TEMPLATE,
    "functions": AbsentField("send tools", ([],)),
    "function_call": AbsentField("send tool_choice"),
}
RESPONSE: AbsentFields = {
    **GENERATING,
    "conversation": AbsentField("is not supported: set previous_response_id, or send all items in input", ({}, False)),
    "prompt": AbsentField("prompt templates are not stored: send instructions and input", ({}, False)),
    "max_tool_calls": AbsentField("limits built-in tools, which this server does not have", (False,)),
    "include_reasoning": AbsentField("only true is supported", (True,)),
    "request_id": AbsentField("send the header X-Request-Id"),
    "truncate_prompt_tokens": AbsentField("the input is not cut: send a shorter one"),
    "chat_template": _TEMPLATE,
    "previous_input_messages": AbsentField("send all items in input", ([],)),
    "enable_response_messages": AbsentField("is not supported: send a chat with return_token_ids: true", (False,)),
}
STRUCTURED_OUTPUTS: AbsentFields = {
    "disable_any_whitespace": AbsentField("JSON has the white space that the model writes", (False,)),
    "disable_additional_properties": AbsentField("write additionalProperties: false into the schema", (False,)),
    "disable_fallback": AbsentField("there is one backend, and no other to fall back to", (False,)),
    "whitespace_pattern": AbsentField("JSON has the white space that the model writes"),
    "structural_tag": AbsentField("is not supported: send json, regex, choice or grammar, or tools with strict: true"),
}
"""Of the object `structured_outputs`, all of whose fields clients send that write an object of Python as JSON."""
EMBEDDING: AbsentFields = {
    **_PROMPT,
    "dimensions": AbsentField("is not supported: vectors have the model's hidden size"),
    "embed_dtype": AbsentField("only float32 is supported", ("float32",)),
    "endianness": AbsentField("only little is supported", ("native", "little")),
    "normalize": AbsentField("only true is supported", (True,)),
    "use_activation": AbsentField("only true is supported", (True,)),
}
SCORE: AbsentFields = {
    **_PROMPT,
    "use_activation": AbsentField("has no effect on the similarity of embeddings", (True, False)),
    "max_tokens_per_query": AbsentField("send truncate_prompt_tokens", (0,)),
    "max_tokens_per_doc": AbsentField("send truncate_prompt_tokens", (0,)),
    "max_chunks_per_doc": AbsentField("documents are not divided: send truncate_prompt_tokens", (1,)),
    "rank_fields": AbsentField("documents are texts", ([],)),
}
"""Of pairs of texts: those of vLLM and Cohere."""


def without_absent_fields(data: dict[Any, Any], fields: AbsentFields) -> dict[Any, Any]:
    """Return a body without those of the fields that ask for nothing; raise ValueError for the others."""
    for name, value in data.items():
        if name in fields and not _asks_for_nothing(value, fields[name].neutral):
            raise ValueError(f"{name}: {fields[name].remedy}")
    return {name: value for name, value in data.items() if name not in fields}


def _asks_for_nothing(value: Any, neutral: tuple[Any, ...]) -> bool:
    without_values = isinstance(value, dict) and not any(value.values())
    return value is None or ({} if without_values else value) in neutral
