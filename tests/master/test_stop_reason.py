"""`stop_reason`: what of the request ended a choice, in answers and streams of both routes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from orca_master.scheduling.request import FinishReason
from support.scripted_engine import END, MODEL, Scripted, make_model

QUESTION: Any = [{"role": "user", "content": "1 + 1?"}]


def reasons(scripted: Scripted, fields: dict[str, Any]) -> list[Any]:
    """Return `stop_reason` of the answers of both routes, and of all chunks of their streams; "absent" without one."""

    async def run() -> list[Any]:
        found = []
        async with scripted as client:
            for call in (
                lambda **options: client.chat.completions.create(model=MODEL, messages=QUESTION, **options),
                lambda **options: client.completions.create(model=MODEL, prompt="1 + 1?", **options),
            ):
                (choice,) = (await call(extra_body=fields)).choices
                found.append(choice.to_dict().get("stop_reason", "absent"))
                stream = await call(extra_body=fields, stream=True)
                chunks = [choice.to_dict() async for chunk in stream for choice in chunk.choices]
                assert all("stop_reason" not in chunk for chunk in chunks if chunk["finish_reason"] is None)
                found.append(chunks[-1].get("stop_reason", "absent"))
        return found

    return asyncio.run(run())


@pytest.fixture
def model(tmp_path):
    return make_model(tmp_path, "{{ messages | tojson }}")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "absent"),
        ({"stop": ["x", "ur"]}, "ur"),
        ({"stop": "x", "stop_token_ids": [256]}, 256),
        ({"stop": "r", "stop_token_ids": [256]}, "r"),
        ({"stop": "x", "stop_token_ids": [7]}, "absent"),
    ],
)
def test_a_string_or_a_token_of_the_request_is_named(model, fields, reason):
    scripted = Scripted(model, f"four{END}")
    assert scripted.codec.encode(END) == [256]
    assert reasons(scripted, fields) == [reason] * 4


def test_an_answer_that_is_cut_off_has_no_such_reason(model):
    scripted = Scripted(model, "four", FinishReason.LENGTH)
    last = scripted.codec.encode("r")
    assert reasons(scripted, {"stop_token_ids": last}) == ["absent"] * 4
