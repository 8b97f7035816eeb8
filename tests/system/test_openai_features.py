"""Everything that the OpenAI endpoint offers beyond a plain completion, mostly through the official client."""

from __future__ import annotations

import json
import math
import re

import httpx
import openai
import pytest
from orca_contract.kv_blocks import BLOCK_SIZE
from support.checkpoints import MAX_POSITIONS, VOCABULARY, with_tokenizer
from support.served import READY, START_DETAILS, serve, value

# tests/master sends these requests to the application, and test_everything.py those of every kind to a whole server.
pytestmark = pytest.mark.long

NAME = "llama-head80-untied"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def served(checkpoint, tmp_path_factory):
    model = with_tokenizer(checkpoint(NAME), tmp_path_factory.mktemp("features"))
    with serve(
        model, "-pp", "2", "--served-model-name", NAME, "--served-model-name", "alias", "--no-vllm-metrics"
    ) as server:
        yield server


@pytest.fixture(scope="module")
def client(served):
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60)


def complete(client, prompt="Once", max_tokens=24, temperature=0, **options):
    extensions = {"ignore_eos": True, "return_token_ids": True, **options.pop("extra_body", {})}
    return client.completions.create(
        model=NAME, prompt=prompt, max_tokens=max_tokens, temperature=temperature, extra_body=extensions, **options
    )


def test_a_start_logs_its_report_and_no_details(served):
    logger = " INFO orca_master.commands.server: "
    *lines, ready = [line.split(logger)[1] for line in served.log if logger in line][:5]
    assert lines[0] == f"model: llama, 5 layers, float32, sequences of at most {MAX_POSITIONS} tokens"
    assert lines[1] == "engine: 1 pipeline of 2 partitions (P) x 1 rank (T) on cpu (gloo)"
    assert re.fullmatch(r"kernels: (C\+\+ x86-64\S*|plain torch), level L1 of exactness", lines[2])
    blocks = 3 * 32 * -(-MAX_POSITIONS // BLOCK_SIZE)
    sizing = f"K/V slots: {blocks * BLOCK_SIZE} ({blocks} blocks of 16), as 96 requests of {MAX_POSITIONS} tokens can "
    assert lines[3].startswith(f"{sizing}use; the memory holds (")
    assert READY.search(ready)
    assert not any(detail in line for detail in START_DETAILS for line in served.log)


def test_chat_is_the_completion_of_its_template(client, served):
    chat = client.chat.completions.create(model=NAME, messages=CHAT, max_tokens=16, temperature=0)
    (choice,) = chat.choices
    assert (choice.message.role, chat.object) == ("assistant", "chat.completion")
    text = "system: Be brief.\nuser: Hi\nassistant:"
    same = client.completions.create(model=NAME, prompt=text, max_tokens=16, temperature=0)
    assert choice.message.content == same.choices[0].text
    assert choice.finish_reason == same.choices[0].finish_reason
    counts = [(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) for usage in (chat.usage, same.usage)]
    assert counts[0] == counts[1]
    assert same.usage.prompt_tokens_details.cached_tokens == (counts[0][0] - 1) // BLOCK_SIZE * BLOCK_SIZE
    tokens = httpx.post(f"{served.url}/tokenize", json={"messages": CHAT}).json()
    assert tokens["count"] == chat.usage.prompt_tokens
    assert httpx.post(f"{served.url}/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": text}


def test_chat_streams(client):
    options = {"model": NAME, "messages": CHAT, "max_completion_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage == whole.usage
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)


def test_chat_template_options_and_the_rest_of_the_context(client):
    answer = client.chat.completions.create(
        model=NAME, messages=CHAT, temperature=0,
        extra_body={"chat_template_kwargs": {"prefix": "said:"}, "ignore_eos": True},
    )  # fmt: skip
    text = "system: Be brief.\nuser: Hi\nsaid:"
    assert answer.usage.prompt_tokens == len(text)
    assert answer.usage.total_tokens == MAX_POSITIONS
    without = {"add_generation_prompt": False}
    bare = client.chat.completions.create(model=NAME, messages=CHAT, max_tokens=1, extra_body=without)
    assert bare.usage.prompt_tokens == len("system: Be brief.\nuser: Hi\n")


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_across_tokens_also_in_streams(client, include):
    whole = complete(client, max_tokens=60).choices[0].text
    stop = whole[20:23]
    expected = whole[: whole.index(stop) + (len(stop) if include else 0)]
    options = {
        "max_tokens": 60,
        "stop": ["never said at all", stop],
        "extra_body": {"include_stop_str_in_output": include},
    }
    stopped = complete(client, **options)
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == (expected, "stop")
    assert stopped.usage.completion_tokens < 60
    chunks = list(complete(client, **options, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_stop_token_ids_and_min_tokens(client):
    tokens = complete(client, max_tokens=60).choices[0].token_ids
    stop = tokens[10]
    first = tokens.index(stop)
    stopped = complete(client, max_tokens=60, extra_body={"stop_token_ids": [stop]})
    assert stopped.choices[0].token_ids == tokens[: first + 1]
    assert stopped.choices[0].finish_reason == "stop"
    later = complete(client, max_tokens=60, extra_body={"stop_token_ids": [stop], "min_tokens": first + 5})
    assert stop not in later.choices[0].token_ids[: first + 5]


def test_bad_words_are_not_generated_also_in_streams(client):
    whole = complete(client, max_tokens=60).choices[0].text
    words = [character for character in dict.fromkeys(whole[::9]) if character.isascii() and character.isprintable()]
    words = [word for word in words if word.strip()]
    pair = next(whole[at : at + 2] for at in range(60) if whole[at : at + 2].isalnum() and whole[at] not in words)
    options = {"max_tokens": 60, "extra_body": {"bad_words": [*words, pair]}}
    answer = complete(client, **options).choices[0]
    assert len(answer.token_ids) == 60
    assert [word for word in (*words, pair) if word in whole] == [*words, pair]
    assert not [word for word in (*words, pair) if word in answer.text], "each token is a byte"
    assert pair[0] in answer.text, "it is only the word that is bad"
    assert "".join(chunk.choices[0].text for chunk in complete(client, **options, stream=True)) == answer.text


def test_several_prompts_and_choices(client):
    prompts = ["One", "Another one"]
    apart = [complete(client, prompt, temperature=0.9, seed=4, n=2) for prompt in prompts]
    together = complete(client, prompts, temperature=0.9, seed=4, n=2)
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3]
    expected = [choice.text for answer in apart for choice in answer.choices]
    assert [choice.text for choice in together.choices] == expected
    assert len(set(expected)) == 4
    assert together.usage.prompt_tokens == len("".join(prompts))
    assert together.usage.completion_tokens == 4 * 24
    alone = complete(client, prompts[0], temperature=0.9, seed=4)
    assert alone.choices[0].text == expected[0], "the first of n is what n=1 says"
    streamed = dict.fromkeys(range(4), "")
    for chunk in complete(client, prompts, temperature=0.9, seed=4, n=2, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert list(streamed.values()) == expected
    ids = [[1, 2, 3], [4, 5]]
    assert [choice.prompt_token_ids for choice in complete(client, ids).choices] == ids


def test_echo_puts_the_prompt_in_front(client):
    plain = complete(client, "Echo").choices[0].text
    assert complete(client, "Echo", echo=True).choices[0].text == f"Echo{plain}"
    chunks = complete(client, "Echo", echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == f"Echo{plain}"


def test_log_probabilities(client):
    answer = complete(client, max_tokens=5, logprobs=3).choices[0]
    found = answer.logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == 5
    for token, logprob, best in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert max(best.values()) == logprob <= 0, "greedy takes the likeliest"
        assert token in best
    chat = client.chat.completions.create(
        model=NAME, messages=CHAT, max_tokens=4, temperature=1.5, seed=1, logprobs=True, top_logprobs=2,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    content = chat.choices[0].logprobs.content
    assert [len(token.top_logprobs) for token in content] == [2] * 4
    assert all(token.logprob <= token.top_logprobs[0].logprob for token in content)
    streamed = client.chat.completions.create(
        model=NAME, messages=CHAT, max_tokens=4, temperature=1.5, seed=1, logprobs=True, top_logprobs=2, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    found = [chunk.choices[0].logprobs for chunk in streamed]
    assert [token for logprobs in found if logprobs for token in logprobs.content] == content


def test_token_ids_stand_for_tokens_in_log_probabilities(client):
    """Several tokens are parts of characters, whose texts are equal."""
    wish = {"return_tokens_as_token_ids": True, "ignore_eos": True}
    options = {"max_tokens": 6, "logprobs": 4, "extra_body": wish}
    names = complete(client, max_tokens=6, logprobs=4).choices[0]
    answer = complete(client, **options).choices[0]
    assert answer.logprobs.tokens == [f"token_id:{token}" for token in answer.token_ids]
    assert all(len(best) == 4 for best in answer.logprobs.top_logprobs)
    assert all(
        best[token] == max(best.values())
        for token, best in zip(answer.logprobs.tokens, answer.logprobs.top_logprobs, strict=True)
    )
    assert (answer.text, answer.token_ids) == (names.text, names.token_ids)
    assert answer.logprobs.text_offset == names.logprobs.text_offset
    echoed = complete(client, "Once", echo=True, **options).choices[0]
    ids = [*echoed.prompt_token_ids, *echoed.token_ids]
    assert echoed.logprobs.tokens == [f"token_id:{token}" for token in ids]
    assert echoed.logprobs.top_logprobs[0] is None
    assert all(
        f"token_id:{token}" in best for token, best in zip(ids[1:], echoed.logprobs.top_logprobs[1:], strict=True)
    )
    chunks = list(complete(client, stream=True, **options))
    found = [chunk.choices[0].logprobs for chunk in chunks]
    assert [token for logprobs in found if logprobs for token in logprobs.tokens] == answer.logprobs.tokens
    chat = client.chat.completions.create(
        model=NAME, messages=CHAT, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2,
        extra_body={**wish, "return_token_ids": True},
    ).choices[0]  # fmt: skip
    content = chat.logprobs.content
    assert [entry.token for entry in content] == [f"token_id:{token}" for token in chat.token_ids]
    assert [entry.token for entry in content] == [entry.top_logprobs[0].token for entry in content]
    assert b"".join(bytes(entry.bytes) for entry in content).decode(errors="replace") == chat.message.content


def test_penalties_and_biases_change_what_is_drawn(client):
    plain = complete(client, max_tokens=60).choices[0].token_ids
    forced = complete(client, max_tokens=5, logit_bias={"65": 100}).choices[0].token_ids
    assert forced == [65] * 5
    banned = complete(client, max_tokens=60, logit_bias={str(plain[0]): -100}).choices[0].token_ids
    assert plain[0] not in banned
    for options in ({"presence_penalty": 2}, {"frequency_penalty": 2}, {"extra_body": {"repetition_penalty": 2.0}}):
        varied = complete(client, max_tokens=60, **options).choices[0].token_ids
        assert len(set(varied)) > len(set(plain)), options
    for narrow in ({"top_k": 1}, {"min_p": 1.0}):
        assert complete(client, max_tokens=60, temperature=1.0, extra_body=narrow).choices[0].token_ids == plain


def test_names_versions_and_request_ids(client, served):
    assert [card.id for card in client.models.list().data] == [NAME, "alias"]
    assert client.models.retrieve("alias").max_model_len == MAX_POSITIONS
    assert client.completions.create(model="alias", prompt="x", max_tokens=1).model == NAME
    answer = httpx.post(
        f"{served.url}/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers={"X-Request-Id": "me-1"}
    )
    assert (answer.status_code, answer.headers["x-request-id"]) == (200, "me-1")
    assert len(httpx.get(f"{served.url}/version").headers["x-request-id"]) == 32
    assert any("POST /v1/completions 200" in line and line.endswith("id me-1") for line in served.log)
    assert httpx.get(f"{served.url}/health").status_code == 200
    assert "version" in httpx.get(f"{served.url}/version").json()
    metrics = httpx.get(f"{served.url}/metrics").text
    assert value(metrics, "generation_tokens_total") > 0
    assert "vllm:" not in metrics
    preflight = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST"}
    answer = httpx.options(f"{served.url}/v1/completions", headers=preflight)
    assert answer.headers["access-control-allow-origin"] == "*"


def test_the_best_of_several_choices_are_those_of_the_highest_mean_log_probability(client):
    options = {"prompt": ["One", "Another one"], "temperature": 1.2, "seed": 4, "max_tokens": 8}
    every = complete(client, **options, n=4, logprobs=0)
    expected = []
    for first in (0, 4):
        choices = every.choices[first : first + 4]
        means = {choice.text: sum(choice.logprobs.token_logprobs) / 8 for choice in choices}
        expected += sorted(means, key=lambda text, means=means: -means[text])[:2]
    best = complete(client, **options, n=2, best_of=4, extra_body={"prompt_logprobs": 1})
    assert [choice.index for choice in best.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in best.choices] == expected
    assert all(choice.logprobs is None for choice in best.choices)
    assert [len(choice.prompt_logprobs) for choice in best.choices] == [3, 3, 11, 11]
    assert best.usage.completion_tokens == every.usage.completion_tokens == 8 * 8
    assert best.usage.prompt_tokens == every.usage.prompt_tokens
    assert complete(client, **options, best_of=1).choices[0].text == every.choices[0].text


@pytest.mark.parametrize(
    ("path", "change", "field", "words"),
    [
        ("completions", {"suffix": "end"}, "suffix", "write the tokens with which this model infills"),
        ("completions", {"best_of": 1, "n": 2}, "best_of", "1 is below n, 2"),
        ("completions", {"max_tokens": 0}, "max_tokens", "0 is only allowed with echo: true"),
        ("completions", {"stop": ["a", ""]}, "stop", "must not be empty"),
        ("completions", {"stream_options": {"include_usage": True}}, "stream_options", "only allowed with stream"),
        ("completions", {"logit_bias": {"x": 1}}, "logit_bias", "pattern"),
        ("completions", {"logit_bias": {str(VOCABULARY): 1}}, "logit_bias", "not below the vocabulary size"),
        ("completions", {"stop_token_ids": [VOCABULARY]}, "stop_token_ids", "not below the vocabulary size"),
        ("completions", {"logprobs": 21}, "logprobs", "less than or equal to 20"),
        ("completions", {"n": 0}, "n", "greater than or equal to 1"),
        ("completions", {"presence_penalty": 3}, "presence_penalty", "less than or equal to 2"),
        ("completions", {"min_p": 2}, "min_p", "less than or equal to 1"),
        ("chat/completions", {"messages": []}, "messages", "at least 1 item"),
        ("chat/completions", {"messages": [{"role": "robot", "content": ""}]}, "messages", "messages.0.role"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "type"),
        ("chat/completions", {"top_logprobs": 2}, "top_logprobs", "needs logprobs: true"),
        ("chat/completions", {"response_format": {"type": "xml"}}, "response_format", "'text'"),
        ("chat/completions", {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "call-parser"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x" * 900}]}, "messages", "leave no room"),
        ("chat/completions", {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message",
         "needs add_generation_prompt: false"),
        ("chat/completions", {"continue_final_message": True}, "messages", "must be of the role assistant"),
        ("chat/completions", {"reasoning_effort": "huge"}, "reasoning_effort", "'minimal'"),
        ("completions", {"prompt_logprobs": 21}, "prompt_logprobs", "less than or equal to 20"),
        ("completions", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "not supported with stream"),
        ("chat/completions", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "not supported with stream"),
        ("chat/completions", {"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ("completions", {"best_of": 2, "stream": True}, "best_of", "not supported with stream: true"),
        ("chat/completions", {"best_of": 2}, "best_of", "only supported by /v1/completions"),
        ("chat/completions", {"max_completion_tokens": 2000}, "max_completion_tokens", "maximum context length is"),
        ("chat/completions", {"max_tokens": 2000}, "max_tokens", "for the answer = "),
        ("chat/completions", {"messages": [{"role": "user", "content": "x" * 900}], "max_tokens": 1}, "messages",
         "the prompt is too long"),
        ("completions", {"prompt": "x" * 900}, "prompt", "the prompt is too long: it has "),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(served, path, change, field, words):
    body = {"prompt": "x", "max_tokens": 2} if path == "completions" else {"messages": CHAT}
    answer = httpx.post(f"{served.url}/v1/{path}", json={**body, **change})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == (field, "invalid_request_error")
    assert words in error["message"]


def test_an_answer_can_be_sent_back(client):
    """The client's own message object, with its nulls, as the next turn."""
    first = client.chat.completions.create(
        model=NAME, messages=CHAT, max_tokens=4, temperature=0, response_format={"type": "text"}
    )
    said = first.choices[0].message
    messages = [*CHAT, said.model_dump(), {"role": "user", "content": "Go on"}]
    assert client.chat.completions.create(model=NAME, messages=messages, max_tokens=1).usage.prompt_tokens > 40


def test_null_means_the_default(served):
    body = {"prompt": "x", "max_tokens": 2, "temperature": None, "stop": None, "n": None, "logit_bias": None}
    answer = httpx.post(f"{served.url}/v1/completions", json=body)
    assert answer.status_code == 200
    assert json.loads(answer.text)["usage"]["completion_tokens"] >= 1


def test_only_allowed_tokens_are_generated_also_in_streams(client):
    allowed = {*range(48, 58), 97, 101}
    options = {"max_tokens": 60, "extra_body": {"allowed_token_ids": [*allowed]}}
    whole = complete(client, max_tokens=60).choices[0].token_ids
    answer = complete(client, **options).choices[0]
    assert len(answer.token_ids) == 60
    assert set(answer.token_ids) <= allowed
    assert not set(whole) <= allowed
    assert "".join(chunk.choices[0].text for chunk in complete(client, **options, stream=True)) == answer.text
    drawn = complete(client, temperature=2, seed=3, **options).choices[0].token_ids
    assert len(set(drawn)) > len(allowed) // 2
    assert set(drawn) <= allowed
    other = complete(client, logit_bias={"65": 100}, presence_penalty=2, logprobs=5, **options).choices[0]
    assert set(other.token_ids) <= allowed, "a bias allows no token"
    assert sum(map(math.exp, other.logprobs.top_logprobs[0].values())) <= 1.0001, "of the allowed tokens alone"
    alone = complete(client, logprobs=5, extra_body={"allowed_token_ids": [65]}).choices[0]
    assert (alone.token_ids, alone.logprobs.token_logprobs) == ([65] * 24, [0.0] * 24)
    assert all(len(best) == 1 for best in alone.logprobs.top_logprobs), alone.logprobs.top_logprobs
