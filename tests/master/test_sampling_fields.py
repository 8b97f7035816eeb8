"""SamplingFields: each generating route of OpenAI's API has all of them, with the same bounds and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from orca_master.bodies.lengths import Lengths
from orca_master.bodies.sampling_fields import SamplingFields
from orca_master.bodies.validation import check_body
from orca_master.errors import RequestError

ROUTES: dict[str, dict[str, Any]] = {
    "completion": {"prompt": "a"},
    "chat": {"messages": [{"role": "user", "content": "a"}]},
    "response": {"input": "a"},
}


@pytest.mark.parametrize("route", ROUTES)
def test_all_routes_have_the_fields_and_their_bounds(route):
    def check(**fields: Any) -> Any:
        return check_body(route, json.dumps({**ROUTES[route], **fields}).encode(), Lengths(1024))

    body = check(stop="a", bad_words=["b"], logit_bias={"1": 2}, repetition_penalty=1.5, min_tokens=1)
    assert isinstance(body, SamplingFields)
    assert (body.stop_strings, body.bad_words, body.repetition_penalty) == (["a"], ["b"], 1.5)
    assert check(stop=["a", "b"]).stop_strings == ["a", "b"]
    assert check().stop_strings == []
    for fields, words in (
        ({"stop": ["a", ""]}, "stop: a stop string must not be empty"),
        ({"presence_penalty": 3}, "presence_penalty: Input should be less than or equal to 2"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
    ):
        with pytest.raises(RequestError, match=f"^{words}"):
            check(**fields)
