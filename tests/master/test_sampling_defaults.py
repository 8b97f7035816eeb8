"""The sampling parameters of generation_config.json: what is read, and which requests they stand in."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from orca_master.bodies.openai_requests import ChatCompletionRequest
from orca_master.errors import ConfigurationError
from orca_master.text.sampling_defaults import read_sampling_file
from support.scripted_engine import END, MODEL, Scripted, make_model

TEMPLATE = "{{ messages | tojson }}"
RECOMMENDED = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
AROUND = len('[{"role": "user", "content": ""}]')
"""Tokens of a prompt besides those of its message."""
QUESTION = {"role": "user", "content": "1 + 1?"}


def test_the_five_parameters_are_read_and_others_are_not(tmp_path):
    assert (read_sampling_file(tmp_path).defaults, read_sampling_file(tmp_path).max_new_tokens) == ({}, None)
    path = tmp_path / "generation_config.json"
    path.write_text(
        json.dumps({**RECOMMENDED, "min_p": None, "do_sample": False, "max_new_tokens": 5, "bos_token_id": 1})
    )
    assert (read_sampling_file(tmp_path).defaults, read_sampling_file(tmp_path).max_new_tokens) == (RECOMMENDED, 5)


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", -1), ("top_p", 0), ("top_k", 1.5), ("min_p", "0.1"), ("max_new_tokens", 0)]
)
def test_an_invalid_value_is_an_error_that_names_the_field(tmp_path, name, value):
    (tmp_path / "generation_config.json").write_text(json.dumps({name: value}))
    with pytest.raises(ConfigurationError, match=rf"generation_config\.json.*{name}"):
        read_sampling_file(tmp_path)


BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "1 + 1?"},
    "/v1/chat/completions": {"messages": [QUESTION]},
    "/v1/responses": {"input": "1 + 1?"},
    "/v1/messages": {"messages": [QUESTION], "max_tokens": 5},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("sent", "changed"),
    [({}, {}), ({"temperature": None}, {}), ({"temperature": 1.0, "top_p": 1.0}, {"temperature": 1.0, "top_p": 1.0})],
)
def test_they_stand_in_all_requests_for_what_the_client_has_not_set(tmp_path, path, sent, changed):
    folder = make_model(tmp_path, TEMPLATE)
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**config, **RECOMMENDED}))
    scripted = Scripted(folder, f"2{END}")

    async def scene() -> None:
        async with scripted:
            answer = await scripted.http.post(f"http://localhost{path}", json={"model": MODEL, **BODIES[path], **sent})
            assert answer.status_code == 200, answer.text
        sampling = scripted.engine.submissions[-1].sampling
        assert {name: getattr(sampling, name) for name in RECOMMENDED} == {**RECOMMENDED, **changed}
        if path == "/v1/responses":
            expected = {**RECOMMENDED, **changed}
            assert [answer.json()[name] for name in ("temperature", "top_p")] == [
                expected["temperature"],
                expected["top_p"],
            ]

    asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize(
    ("path", "sent", "expected"),
    [
        ("/v1/chat/completions", {}, 30),
        ("/v1/chat/completions", {"max_tokens": None, "stream": True}, 30),
        ("/v1/chat/completions", {"max_tokens": 40}, 40),
        ("/v1/chat/completions", {"max_completion_tokens": 20}, 20),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * (10_000 - AROUND - 7)}]}, 7),
        ("/v1/responses", {}, 30),
        ("/v1/responses", {"background": True}, 30),
        ("/v1/responses", {"max_output_tokens": 40}, 40),
        ("/v1/messages", {"max_tokens": 40}, 40),
        ("/v1/completions", {}, 16),
    ],
)
def test_the_models_length_is_that_of_chats_without_a_maximum(tmp_path, path, sent, expected):
    """If the context has room for it. A request's own maximum is obeyed; OpenAI's default for completions is 16."""
    folder = make_model(tmp_path, TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"max_new_tokens": 30}))
    scripted = Scripted(folder, f"2{END}")

    async def scene() -> None:
        async with scripted:
            answer = await scripted.http.post(f"http://localhost{path}", json={"model": MODEL, **BODIES[path], **sent})
            assert answer.status_code == 200, answer.text
        assert scripted.engine.submissions[-1].max_gen_tokens == expected

    asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize(
    ("sent", "limit"),
    [
        ({"min_tokens": 31}, "max_new_tokens of the model's generation_config.json, 30"),
        ({"min_tokens": 31, "max_tokens": 20}, "max_tokens, 20"),
        (
            {"min_tokens": 8, "messages": [{"role": "user", "content": "a" * (10_000 - AROUND - 7)}]},
            "the room that the prompt leaves in the context, 7",
        ),
    ],
)
def test_a_minimum_above_the_length_names_where_the_length_is_from(tmp_path, sent, limit):
    folder = make_model(tmp_path, TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"max_new_tokens": 30}))
    scripted = Scripted(folder, f"2{END}")

    async def scene() -> None:
        async with scripted:
            body = {"model": MODEL, "messages": [QUESTION], **sent}
            answer = await scripted.http.post("http://localhost/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == f"min_tokens: {sent['min_tokens']} exceeds {limit}"

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_a_request_is_recorded_with_them(tmp_path):
    """The next master continues the request with the same parameters, whatever the file says then."""
    (folder := make_model(tmp_path, TEMPLATE)).joinpath("generation_config.json").write_text(json.dumps(RECOMMENDED))
    endpoint = Scripted(folder, "2").endpoint
    body = ChatCompletionRequest.model_validate({"messages": [QUESTION], "top_p": 0.5})
    recorded = endpoint.with_defaults(body).model_dump(mode="json", exclude_unset=True)
    assert {name: recorded[name] for name in RECOMMENDED} == {**RECOMMENDED, "top_p": 0.5}
