"""Fields of OpenAI's and vLLM's requests that ORCA does not have: accepted if they ask for nothing, else refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from orca_master.bodies import absent_fields
from orca_master.bodies.body import Body
from orca_master.bodies.embedding_requests import EmbeddingRequest
from orca_master.bodies.lengths import Lengths
from orca_master.bodies.openai_requests import ChatCompletionRequest, CompletionRequest
from orca_master.bodies.response_requests import ResponseRequest
from orca_master.bodies.score_requests import RerankRequest, ScoreTextsRequest
from orca_master.bodies.validation import check_body
from orca_master.errors import RequestError

ROUTES: dict[str, tuple[type[Body], dict[str, Any]]] = {
    "completion": (CompletionRequest, {"prompt": "a"}),
    "chat": (ChatCompletionRequest, {"messages": [{"role": "user", "content": "a"}]}),
    "response": (ResponseRequest, {"input": "a"}),
    "embedding": (EmbeddingRequest, {"input": "a"}),
    "score": (ScoreTextsRequest, {"text_1": "a", "text_2": "b"}),
    "rerank": (RerankRequest, {"query": "a", "documents": ["b"]}),
}
FIELDS = [(route, name) for route, (body, _) in ROUTES.items() for name in body.absent]


def check(route: str, **fields: Any) -> Any:
    return check_body(route, json.dumps({**ROUTES[route][1], **fields}).encode(), Lengths(1024))


@pytest.mark.parametrize(("route", "name"), FIELDS)
def test_only_a_value_that_asks_for_nothing_is_accepted(route, name):
    field = ROUTES[route][0].absent[name]
    objects = [{"a": None}] if {} in field.neutral else []
    for value in (None, *field.neutral, *objects):
        assert check(route, **{name: value}) == check(route)
    refusable = ("other", ["a"], {"a": 1}, -1, {})
    for value in refusable if {} not in field.neutral else refusable[:-1]:
        with pytest.raises(RequestError) as refused:
            check(route, **{name: value})
        assert (str(refused.value), refused.value.field) == (f"{name}: {field.remedy}", name)


@pytest.mark.parametrize("route", ROUTES)
def test_no_field_of_a_route_is_also_absent(route):
    body = ROUTES[route][0]
    assert not body.absent.keys() & body.model_fields.keys()


@pytest.mark.parametrize("route", ["completion", "chat", "response"])
def test_the_defaults_of_vllm_are_accepted(route):
    """Those of the fields that a client may send without a wish."""
    check(
        route,
        **dict.fromkeys(("guided_json", "truncate_prompt_tokens", "mm_processor_kwargs", "vllm_xargs", "cache_salt")),
        **dict.fromkeys(("logits_processors", "allowed_token_ids", "thinking_token_budget", "kv_transfer_params")),
        **{"repetition_detection": {"max_pattern_size": 0, "min_pattern_size": 0, "min_count": 0}, "bad_words": []},
        **{"use_beam_search": False, "length_penalty": 1.0, "spaces_between_special_tokens": True, "detokenize": True},
        **{"priority": 0, "skip_special_tokens": True, "min_tokens": 0, "stop_token_ids": [], "top_k": 0},
    )


def test_an_unknown_field_is_refused_as_before():
    with pytest.raises(RequestError, match=r"^typical_p: this field is unknown or not supported"):
        check("chat", typical_p=1.0)


def test_the_first_field_of_several_is_named():
    assert absent_fields.CHAT.keys() > {"echo", "documents"}
    for names in (("echo", "documents"), ("documents", "echo")):
        with pytest.raises(RequestError, match=f"^{names[0]}: "):
            check("chat", **dict.fromkeys(names, "a"))


@pytest.mark.parametrize("route", ["completion", "chat", "response"])
def test_structured_outputs_may_have_the_other_fields_of_vllm_without_a_wish(route):
    names = ("disable_any_whitespace", "disable_additional_properties", "disable_fallback")
    nothing = {"json": None, "choice": None, "grammar": None, "whitespace_pattern": None, "structural_tag": None}
    for value in (None, False):
        wanted = {**nothing, "regex": "a", "json_object": value, **dict.fromkeys(names, value)}
        grammar = check(route, structured_outputs=wanted).structured_outputs
        assert {name: entry for name, entry in grammar.items() if entry} == {"regex": "a"}
    for name, value in (*((name, True) for name in names), ("whitespace_pattern", " "), ("structural_tag", "{}")):
        remedy = absent_fields.STRUCTURED_OUTPUTS[name].remedy
        with pytest.raises(RequestError) as refused:
            check(route, structured_outputs={"regex": "a", name: value})
        assert str(refused.value) == f"structured_outputs: {name}: {remedy}"
        assert refused.value.field == "structured_outputs"
