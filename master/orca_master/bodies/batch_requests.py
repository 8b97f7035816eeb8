"""The body of POST /v1/batches (https://platform.openai.com/docs/api-reference/batch/create)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from orca_master.bodies.body import Body, Metadata, Name


def _check_characters(metadata: Metadata) -> Metadata:
    """Raise ValueError for a lone surrogate, which neither the answers nor the stored batch can have."""
    try:
        "".join((*metadata, *metadata.values())).encode()
    except UnicodeEncodeError as error:
        raise ValueError("a name or a value has a lone surrogate") from error
    return metadata


class BatchRequest(Body):
    """A batch of the requests in an uploaded file, all to one route."""

    input_file_id: Name
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    completion_window: Literal["24h"]
    metadata: Annotated[Metadata, AfterValidator(_check_characters)] = {}
