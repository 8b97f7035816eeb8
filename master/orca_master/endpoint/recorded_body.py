"""The form in which the journal has the body of a request: without what no response needs, and in few bytes.

The journal's files are bounded, and it is off for all requests when they are full.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

from orca_master.bodies.openai_requests import ChatCompletionRequest, CompletionRequest, GenerationRequest
from orca_master.endpoint.answer_parts import continues_reasoning
from orca_master.errors import RequestError
from orca_master.scheduling.allowed_tokens import AllowedTokens
from orca_master.text.reasoning import BEGIN

COMPLETIONS, CHAT = "completions", "chat"
"""Routes of requests."""
NOT_RECORDED = {"prompt", "messages", "chat_template_kwargs", "user", "request_id", "allowed_token_ids"}
"""Fields of bodies that no response needs once the prompts are token ids, except the texts of prompts with `echo`; the
allowed tokens are recorded in another form."""
ALLOWED = "allowed_tokens"
"""Name of the allowed tokens in a record: their bits, compressed, in base64. As JSON, a vocabulary takes 2 MB."""
PLACEHOLDERS = [{"role": "user", "content": ""}]
"""Messages of a body whose texts are not recorded."""


def recorded_body(body: GenerationRequest) -> dict[str, Any]:
    """Return what the journal has of a body, as JSON data; raise RequestError for a body that no record can have."""
    try:
        recorded = body.model_dump(mode="json", exclude_unset=True, exclude=NOT_RECORDED)
    except UnicodeEncodeError as error:  # pydantic writes the names of objects as UTF-8
        raise RequestError(f"the name {error.object!r:.100} in an object has a lone surrogate") from error
    if body.allowed_token_ids:
        recorded[ALLOWED] = base64.b64encode(zlib.compress(AllowedTokens.of(body.allowed_token_ids))).decode()
    if isinstance(body, CompletionRequest) and body.echo and body.texts is not None:
        recorded["prompt"] = body.texts
    if isinstance(body, ChatCompletionRequest) and continues_reasoning(body):
        recorded["messages"] = [{"role": "assistant", "content": BEGIN}]  # a placeholder that ends within it, too
    return recorded


def body_of(route: str, recorded: Mapping[str, Any]) -> GenerationRequest:
    """Return the body of a route from what the journal has, with placeholders for texts that are not recorded."""
    fields = {name: value for name, value in recorded.items() if name != ALLOWED}
    if ALLOWED in recorded:
        fields["allowed_token_ids"] = AllowedTokens(zlib.decompress(base64.b64decode(recorded[ALLOWED]))).tokens
    if route == CHAT:
        return ChatCompletionRequest.model_validate({"messages": PLACEHOLDERS, **fields})
    return CompletionRequest.model_validate({"prompt": [0], **fields})
