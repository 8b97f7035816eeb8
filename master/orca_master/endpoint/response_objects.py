"""Wire types of the Responses API's answers, and the response without its output.

Source: OpenAI API reference, "Responses". Typed dictionaries: an event of a stream is built for every token.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import GetPydanticSchema
from typing_extensions import TypedDict

from orca_master.bodies.response_requests import FunctionTool, ResponseRequest
from orca_master.endpoint.openai_answers import ChatTokenLogprob

Status = Literal["in_progress", "completed", "incomplete"]


class EncodedLogprobs:
    """The log probabilities of a text, each encoded when it is added: five events and the record have the whole list.

    `place` stands for the list while what contains it is encoded. It is drawn, so that no text of a client has it.
    """

    def __init__(self) -> None:
        self.place = secrets.token_hex(16)
        self._texts: list[str] = []

    def add(self, logprobs: Iterable[ChatTokenLogprob]) -> None:
        """Append log probabilities of tokens."""
        self._texts += map(wire_json, logprobs)

    @property
    def json(self) -> str:
        """The list as JSON."""
        return f"[{','.join(self._texts)}]"


class OutputText(TypedDict):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: Annotated[EncodedLogprobs, GetPydanticSchema(lambda _, schema_of: schema_of(list[ChatTokenLogprob]))]


class ReasoningText(TypedDict):
    """The text of a reasoning item."""

    type: Literal["reasoning_text"]
    text: str


class OutputMessage(TypedDict):
    """A message of the assistant, with one text."""

    type: Literal["message"]
    id: str
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class OutputCall(TypedDict):
    """A call of a function; the arguments are JSON as text."""

    type: Literal["function_call"]
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


class OutputReasoning(TypedDict):
    """Reasoning before the text, unabridged."""

    type: Literal["reasoning"]
    id: str
    status: Status
    summary: list[Any]
    content: list[ReasoningText]


OutputItem = OutputMessage | OutputCall | OutputReasoning


class InputTokensDetails(TypedDict):
    """Prompt tokens by kind."""

    cached_tokens: int


class OutputTokensDetails(TypedDict):
    """Generated tokens by kind."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Token counts of one response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseInputTokens(TypedDict):
    """Response of /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ResponseFault(TypedDict):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(TypedDict):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseObject(TypedDict):
    """Response of /v1/responses, also in events of its stream."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: ResponseFault | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None


def begun_response(
    body: ResponseRequest, response_id: str, created: int, model_name: str, store: bool
) -> ResponseObject:
    """Return the response to `body` before its first token. `created`: seconds since the epoch."""
    text_format = {name: value for name, value in (body.text.format or {"type": "text"}).items() if value is not None}
    choice = body.tool_choice
    return ResponseObject(
        id=response_id,
        object="response",
        created_at=created,
        completed_at=None,
        status="queued" if body.background else "in_progress",
        background=body.background,
        error=None,
        incomplete_details=None,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=None,
        metadata=body.metadata,
        model=model_name,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": body.reasoning.effort, "summary": None},
        safety_identifier=body.safety_identifier,
        service_tier="default",
        store=store,
        temperature=body.temperature,
        text={"format": text_format, "verbosity": body.text.verbosity},
        tool_choice=choice if isinstance(choice, str) else choice.model_dump(),
        tools=[_tool(tool) for tool in body.tools],
        top_logprobs=body.top_logprobs,
        top_p=body.top_p,
        truncation=body.truncation,
        usage=None,
        user=body.user,
    )


def failed_response(response: ResponseObject, code: str, message: str) -> ResponseObject:
    """Return a response that has ended with an error."""
    return {**response, "status": "failed", "error": ResponseFault(code=code, message=message)}


def wire_event(event: dict[str, Any], number: int) -> str:
    """Return an event of a stream as a server-sent event."""
    return f"event: {event['type']}\ndata: {wire_json({**event, 'sequence_number': number})}\n\n"


def wire_json(value: Any) -> str:
    """Return a response, an event or a record as JSON that can be encoded as UTF-8."""
    known: dict[str, EncodedLogprobs] = {}

    def place_of(logprobs: EncodedLogprobs) -> str:
        known[logprobs.place] = logprobs
        return logprobs.place

    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=place_of)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate in a field of the request, which the response repeats
        text = json.dumps(value, separators=(",", ":"), default=place_of)
    for place, logprobs in known.items():
        text = text.replace(f'"{place}"', logprobs.json)
    return text


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return tool.model_dump() | {"strict": bool(tool.strict)}
