"""Body of POST /v1/embeddings, and the fields that it shares with those of scores (score_requests.py).

Source: OpenAI API reference, "Embeddings"; further fields have vLLM's names.
"""

from __future__ import annotations

from typing import Literal

from orca_master.bodies.absent_fields import EMBEDDING
from orca_master.bodies.body import Body, Name, Priority, RequestId
from orca_master.bodies.prompts import Prompts
from orca_master.bodies.truncation import PromptTokens, TruncationSide


class PoolingRequest(Body):
    """Fields of every request whose texts are embedded."""

    model: Name | None = None
    truncate_prompt_tokens: PromptTokens | None = None
    truncation_side: TruncationSide = "right"
    add_special_tokens: bool = True
    priority: Priority = 0
    user: Name | None = None
    cache_salt: Name | None = None
    request_id: RequestId | None = None


class EmbeddingRequest(PoolingRequest):
    """Texts or token ids of which each gets one embedding."""

    absent = EMBEDDING
    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
