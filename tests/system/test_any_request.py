"""Any body: whatever the API accepts is encoded and runs, whatever it refuses is refused alone, and the next is served.

Bodies are sound ones in which a few fields have values at the limits of their types and beyond.
"""

from __future__ import annotations

import json
import math
import time
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from orca_master.bodies.bad_words import MAX_BAD_WORD_CHARACTERS, MAX_BAD_WORDS
from orca_master.bodies.body import MAX_NAME
from orca_master.bodies.embedding_requests import EmbeddingRequest
from orca_master.bodies.logit_bias import MAX_BIASES
from orca_master.bodies.messages_requests import CountTokensRequest, MessagesRequest
from orca_master.bodies.openai_requests import (
    MAX_CHOICES,
    MAX_MESSAGES,
    ChatCompletionRequest,
    CompletionRequest,
)
from orca_master.bodies.prompts import MAX_PROMPTS
from orca_master.bodies.sampling_fields import MAX_COUNT, MAX_STOP_CHARACTERS, MAX_STOP_STRINGS
from orca_master.bodies.score_requests import RerankRequest, ScoreTextsRequest
from orca_master.scheduling.sampling_parameters import MAX_LOGPROBS
from support.checkpoints import MAX_POSITIONS, VOCABULARY, with_tokenizer
from support.served import serve

pytestmark = pytest.mark.long

NAME = "qwen3-gqa-tied"
SOUND = {"prompt": "a", "max_tokens": 2, "temperature": 0}
COUNTED = set(CountTokensRequest.model_fields)
TOLERATED = {200, 400, 404, 408, 429}
NEXT_SECONDS = 60
"""Generous: a machine may be busy. A request that is never answered is what this finds (`-rP` prints the longest wait).
"""

powers = [sign * 2**bits + more for bits in (7, 31, 32, 53, 63, 64) for more in (-1, 0, 1) for sign in (1, -1)]
limits = [MAX_COUNT, MAX_CHOICES, MAX_LOGPROBS, MAX_POSITIONS, VOCABULARY]
integers = st.sampled_from([-1, 0, 1, 2, 10**40, *powers, *(limit + more for limit in limits for more in (-1, 0, 1))])
floats = st.sampled_from(
    [sign * value for sign in (1, -1) for value in (0.0, 5e-324, 2.0**-126, 1e-9, 0.5, 1.0, 2.0, 2.01, 100.0, 100.1)]
    + [1 + 2**-52, 3.4028234e38, 3.5e38, 1.7976931348623157e308, math.inf, -math.inf, math.nan]
)
texts = st.sampled_from(["", "a", "\0", "\ud800", "a\udfff", "٣", "😀" * 50, "x" * (MAX_NAME + 1), "<end>", "\u202e"])
wrong = st.sampled_from([None, True, False, [], {}, "", "1", "1.5", [None], {"a": 1}, [[]], 1e400])
token_ids = st.sampled_from([-1, 0, 1, VOCABULARY - 1, VOCABULARY, 2**31 - 1, 2**31, 2**32, 1.0, 1.5, "1", None, True])


def lengths(entry: Any, *limits: int) -> st.SearchStrategy[list[Any]]:
    """List of one entry, of lengths at the limits."""
    return st.sampled_from([[entry] * (limit + more) for limit in limits for more in (-1, 0, 1)])


prompts = (
    texts
    | st.lists(token_ids, max_size=4)
    | st.lists(texts | st.lists(token_ids, max_size=2) | token_ids, max_size=3)
    | lengths(1, MAX_POSITIONS, 100_000)
    | lengths("a", MAX_PROMPTS)
    | lengths([1], MAX_PROMPTS)
)
parts = st.sampled_from([{"type": "text", "text": "a"}, {"type": "text", "text": "\ud800"}, {"type": "image"}, 1, {}])
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant", "tool", "developer", "robot", 1])},
    optional={"content": texts | wrong | st.lists(parts, max_size=3) | lengths({"type": "text", "text": "a"}, 1024),
              "name": texts | wrong, "tool_calls": wrong},
)  # fmt: skip
stops = texts | wrong | st.lists(texts, max_size=3) | lengths("z", MAX_STOP_STRINGS)
stops |= st.sampled_from(["a" * MAX_STOP_CHARACTERS, "a" * (MAX_STOP_CHARACTERS + 1)])
biases = st.dictionaries(
    st.sampled_from(["0", "1", str(VOCABULARY - 1), str(VOCABULARY), "9999999999", "-1", "٣", "x", "", "\ud800", "01"]),
    floats | integers | wrong,
    max_size=3,
) | st.sampled_from([dict.fromkeys(map(str, range(count)), 1) for count in (VOCABULARY, MAX_BIASES + 1, 100_000)])
special = {
    "prompt": prompts,
    "messages": st.lists(messages, max_size=3) | lengths({"role": "user", "content": ""}, MAX_MESSAGES, 100_000),
    "stop": stops,
    "stop_token_ids": st.lists(token_ids, max_size=3) | lengths(1, MAX_STOP_STRINGS, 100_000),
    "logit_bias": biases,
    "allowed_token_ids": st.lists(token_ids, max_size=3) | wrong | lengths(1, 100_000),
    "bad_words": texts | wrong | st.lists(texts, max_size=3) | lengths("z", MAX_BAD_WORDS),
    "stream_options": st.dictionaries(st.sampled_from(["include_usage", "x"]), wrong, max_size=2),
    "chat_template_kwargs": st.sampled_from([{"a": math.nan}, {"messages": 1}, {"b": "x" * 70_000}, {"\ud800": 1}]),
    "model": st.sampled_from([NAME, "other", "\ud800", "x" * 5000]),
    "stream": st.booleans(),
}


tiny = [5e-324, 2.0**-149, 2.0**-126, 1e-9]
legal: dict[str, list[Any]] = {
    "temperature": [0, *tiny, 2], "top_p": [*tiny, 1], "top_k": [-1, 0, 1, VOCABULARY, MAX_COUNT], "min_p": [0, *tiny],
    "seed": [-(2**63), -1, 0, 2**63 - 1], "n": [1, 2, MAX_CHOICES], "best_of": [1, 3],
    "presence_penalty": [-2, *tiny, 2],
    "frequency_penalty": [-2, *tiny, 2], "repetition_penalty": [*tiny, 1, 100], "min_tokens": [0, 1, 2],
    "max_tokens": [0, 2, 3, 100], "prompt_logprobs": [0, MAX_LOGPROBS],
    "max_completion_tokens": [2, 3, 100], "logprobs": [0, 1, MAX_LOGPROBS],
    "top_logprobs": [0, MAX_LOGPROBS], "stop": ["a", ["a", "\ud800"], "a" * MAX_STOP_CHARACTERS], "user": ["\ud800"],
    "logit_bias": [{"0": 100, "1": -100}, dict.fromkeys(map(str, range(VOCABULARY)), -100)], "stop_token_ids": [[0]],
    "allowed_token_ids": [[0], [*range(VOCABULARY)], [VOCABULARY - 1] * 3],
    "thinking_token_budget": [-1],
    "bad_words": [["a", "ab"], ["a" * MAX_BAD_WORD_CHARACTERS]],
    "prompt": [[0], ["a", "\0"], [[VOCABULARY - 1], [0]], "<end>", [1] * 600], "model": [NAME],
    "messages": [[{"role": "tool", "content": [{"type": "text", "text": "a"}], "name": "\ud800"}] * 3],
    "stream_options": [None],
    "chat_template_kwargs": [{"a": [math.nan, "\ud800"]}], "response_format": [{"type": "text"}],
    "unknown": [None],
}  # fmt: skip


blocks = st.sampled_from(
    [{"type": "text", "text": "a"}, {"type": "text", "text": "\ud800", "cache_control": {"type": "ephemeral"}},
     {"type": "tool_use", "id": "", "name": "\ud800", "input": {"\ud800": [math.nan, 10**400]}},
     {"type": "tool_use", "id": "1", "name": "a", "input": json.loads('{"a": ' * 900 + "1" + "}" * 900)},
     {"type": "tool_result", "tool_use_id": "\ud800", "content": [{"type": "text", "text": "a"}], "is_error": True},
     {"type": "tool_result", "tool_use_id": ""}, {"type": "thinking", "thinking": "a"}, {"type": "image"}, 1, {}, None]
)  # fmt: skip
turns = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", 1])},
    optional={"content": texts | wrong | st.lists(blocks, max_size=3) | lengths({"type": "text", "text": ""}, 1024)},
)
tools = st.sampled_from(
    [[], [{"name": "a", "input_schema": {}}], [{"name": "a", "input_schema": {}}] * 2, [{"type": "bash", "name": "a"}],
     [{"name": str(number), "input_schema": {"a": math.nan}} for number in range(129)], [{"name": "\ud800"}]]
)  # fmt: skip
special_of_messages = {
    **special,
    "messages": st.lists(turns, max_size=4) | lengths({"role": "user", "content": ""}, MAX_MESSAGES, 100_000),
    "system": texts | wrong | st.lists(blocks, max_size=3),
    "stop_sequences": stops,
    "tools": tools,
    "tool_choice": st.sampled_from([{"type": kind} for kind in ("auto", "any", "none", "tool", 1)]) | wrong,
    "thinking": st.sampled_from([{"type": kind} for kind in ("enabled", "adaptive", "disabled", 1)]) | wrong,
    "metadata": st.sampled_from([{"user_id": "\ud800"}, {"user_id": "x" * 5000}]) | wrong,
}
legal_of_messages = {
    **legal,
    "messages": [[{"role": "user", "content": [{"type": "text", "text": "a"}]}] * 3],
    "system": ["a", [{"type": "text", "text": "a"}]], "stop_sequences": [["a", "\ud800"]], "top_k": [0, MAX_COUNT],
    "metadata": [{"user_id": "a"}], "thinking": [{"type": "disabled"}], "max_tokens": [1, 2, MAX_COUNT],
    "tool_choice": [{"type": "none"}], "tools": [[]], "service_tier": ["auto"],
    "cache_control": [{"type": "ephemeral"}],
}  # fmt: skip


def bodies(
    model: type, sound: dict[str, Any], special: dict[str, Any] = special, legal: dict[str, Any] = legal
) -> st.SearchStrategy[dict[str, Any]]:
    """Sound bodies with up to four fields at the limits, one in four of which is hostile."""
    wild = integers | floats | texts | wrong

    def value(name: str, dice: int) -> st.SearchStrategy[tuple[str, Any]]:
        hostile = special.get(name, wild) if dice == 0 else wild
        return st.tuples(st.just(name), st.sampled_from(legal.get(name, [True, False])) if dice > 1 else hostile)

    names = st.sampled_from([*model.model_fields, "unknown"])
    field = st.tuples(names, st.integers(0, 7)).flatmap(lambda drawn: value(*drawn))
    return st.lists(field, max_size=4).map(lambda fields: sound | dict(fields))


@pytest.fixture(scope="module")
def client(checkpoint, tmp_path_factory):
    model = with_tokenizer(checkpoint(NAME), tmp_path_factory.mktemp("any"))
    with (
        serve(model, "--request-timeout", "2", "--max-batch-size", "64", "--disable-log-requests") as served,
        httpx.Client(base_url=served.url, timeout=NEXT_SECONDS) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def waits():
    """Seconds for which each request after a body waited."""
    found: list[float] = []
    yield found
    print(f"{len(found)} requests after such a body: answered within {max(found):.2f} s")


def post(client: httpx.Client, route: str, body: dict[str, Any]) -> httpx.Response:
    return client.post(route, content=json.dumps(body), headers={"Content-Type": "application/json"})


def check(client: httpx.Client, waits: list[float], route: str, body: dict[str, Any]) -> None:
    answer = post(client, route, body)
    assert answer.status_code in TOLERATED, (answer.status_code, answer.text[:500])
    assert len(answer.content) < 4000 or answer.status_code == 200, "an error is short"
    assert "internal error" not in answer.text
    assert answer.status_code == 200 or set(answer.json()) - {"type"} == {"error"}
    began = time.monotonic()
    after = post(client, "/v1/completions", SOUND)
    waits.append(time.monotonic() - began)
    # The two seconds of a request may pass on a busy machine, which is an answer.
    assert after.status_code in {200, 408}, after.text
    assert client.get("/readyz").status_code == 200


examples = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large],
)


@examples
@given(body=bodies(CompletionRequest, {"prompt": "abc", "max_tokens": 2, "seed": 1}))
def test_any_completion(client, waits, body):
    check(client, waits, "/v1/completions", body)


@examples
@given(
    body=bodies(
        EmbeddingRequest,
        {"input": "abc"},
        {**special, "input": prompts},
        {**legal, "input": legal["prompt"], "encoding_format": ["float", "base64"]},
    )
)
def test_any_embedding(client, waits, body):
    check(client, waits, "/v1/embeddings", body)


pairs = texts | st.lists(texts, max_size=3) | lengths("a", MAX_PROMPTS) | wrong
legal_pairs = ["a", ["a", "b"], ["<end>", "\0"]]


@examples
@given(
    body=bodies(
        ScoreTextsRequest,
        {"text_1": "abc", "text_2": ["abc", "b"]},
        {**special, "text_1": pairs, "text_2": pairs},
        {**legal, "text_1": legal_pairs, "text_2": legal_pairs},
    )
)
def test_any_score(client, waits, body):
    check(client, waits, "/v1/score", body)


@examples
@given(
    body=bodies(
        RerankRequest,
        {"query": "abc", "documents": ["abc", "b"]},
        {**special, "query": pairs, "documents": pairs},
        {**legal, "query": ["a", "<end>"], "documents": legal_pairs, "top_n": [0, 1, 3, MAX_COUNT]},
    )
)
def test_any_ranking(client, waits, body):
    check(client, waits, "/rerank", body)


@examples
@given(body=bodies(ChatCompletionRequest, {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2}))
def test_any_chat(client, waits, body):
    check(client, waits, "/v1/chat/completions", body)


@examples
@given(
    body=bodies(
        MessagesRequest,
        {"model": NAME, "messages": [{"role": "user", "content": "abc"}], "max_tokens": 2},
        special_of_messages,
        legal_of_messages,
    )
)
def test_any_message(client, waits, body):
    check(client, waits, "/v1/messages", body)
    count = post(client, "/v1/messages/count_tokens", {name: body[name] for name in body if name in COUNTED})
    assert count.status_code in TOLERATED, count.text[:500]
    assert set(count.json()) in ({"input_tokens"}, {"type", "error"})
