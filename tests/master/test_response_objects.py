"""The response object repeats the options of its request in the shape that OpenAI's client knows."""

from __future__ import annotations

from openai.types.responses import Response
from orca_master.bodies.response_requests import ResponseRequest
from orca_master.endpoint.response_objects import begun_response


def test_options_of_the_request_are_repeated():
    body = ResponseRequest.model_validate(
        {
            "input": "a", "instructions": "b", "metadata": {"c": "d"}, "max_output_tokens": 7, "temperature": 0.5,
            "top_p": 0.9, "parallel_tool_calls": False, "user": "u", "safety_identifier": "s", "prompt_cache_key": "p",
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
            "tool_choice": {"type": "function", "name": "f"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": None}},
        }
    )  # fmt: skip
    data = begun_response(body, "resp_1", 5, "m", False)
    response = Response.model_validate(data, strict=False)
    assert (response.id, response.created_at, response.status, response.model) == ("resp_1", 5, "in_progress", "m")
    assert (response.instructions, response.metadata, response.max_output_tokens) == ("b", {"c": "d"}, 7)
    assert (response.temperature, response.top_p, response.parallel_tool_calls) == (0.5, 0.9, False)
    assert (response.user, response.safety_identifier, response.prompt_cache_key) == ("u", "s", "p")
    assert data["tool_choice"] == {"type": "function", "name": "f"}
    assert data["tools"] == [
        {"type": "function", "name": "f", "description": None, "parameters": {"type": "object"}, "strict": False}
    ]
    assert data["text"] == {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "medium"}
    assert begun_response(ResponseRequest(input="a"), "resp_1", 5, "m", False)["text"]["format"] == {"type": "text"}
