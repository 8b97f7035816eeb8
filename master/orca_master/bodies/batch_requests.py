"""The body of POST /v1/batches (https://platform.openai.com/docs/api-reference/batch/create)."""

from __future__ import annotations

from typing import Literal

from orca_master.bodies.body import Body, Name
from orca_master.bodies.response_requests import Metadata


class BatchRequest(Body):
    """A batch of the requests in an uploaded file, all to one route."""

    input_file_id: Name
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    completion_window: Literal["24h"]
    metadata: Metadata = {}
