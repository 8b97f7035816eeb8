"""Log probabilities of prompts over HTTP: as harnesses of evaluations ask for them, and vLLM's `prompt_logprobs`."""

from __future__ import annotations

import math
import os
import signal
from operator import itemgetter
from typing import Any

import httpx
import openai
import pytest
import torch
from support.checkpoints import Reference, with_tokenizer
from support.served import Served, eventually, serve

pytestmark = pytest.mark.long

LENGTHS = (1, 2, 33, 600)
NUM_TOKENS = 32
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
CASES = [
    pytest.param(("gpt2-head64-tied", 1), id="gpt2-1"),
    pytest.param(("llama-gqa-tied", 2), id="llama-2"),
    pytest.param(("gpt2-head64-tied", 2), id="gpt2-2"),
    pytest.param(("llama-gqa-tied", 1), id="llama-1"),
    *(
        pytest.param((name, partitions), id=f"{name}-{partitions}", marks=pytest.mark.exhaustive)
        for name in ("mistral-gqa", "qwen2-gqa-tied", "qwen3-gqa-tied", "gemma2-gqa-tied")
        for partitions in (1, 2)
    ),
]


@pytest.fixture(scope="module", params=CASES)
def case(request, checkpoint, tmp_path_factory):
    name, partitions = request.param
    model = with_tokenizer(checkpoint(name), tmp_path_factory.mktemp("echo"))
    options = ("-pp", str(partitions), "--token-budget", "64", "--dtype", "float32", "--served-model-name", "model")
    with serve(model, *options) as served:
        yield name, served


@pytest.fixture(scope="module")
def client(case):
    return openai.OpenAI(base_url=f"{case[1].url}/v1", api_key="none", max_retries=0, timeout=60)


def expected_of(reference: Reference, tokens: list[int]) -> list[float]:
    """Return transformers' log probabilities of tokens after the reference's prompt; all but the last are greedy."""
    rows = torch.log_softmax(reference.logits[len(reference.prompt) - 1 :], dim=-1)
    return [float(rows[place, token]) for place, token in enumerate(tokens)]


def log_likelihoods(served: Served, pairs: list[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
    """Return the sum of the log probabilities of each continuation of a context, and whether it is the greedy one.

    As the model `local-completions` of EleutherAI's lm-eval asks for them, and reads the answer.
    """
    body = {
        "model": "model", "prompt": [[*context, *continuation] for context, continuation in pairs], "temperature": 0,
        "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True,
    }  # fmt: skip
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60).raise_for_status().json()
    found = []
    for choice, (context, _) in zip(sorted(answer["choices"], key=itemgetter("index")), pairs, strict=True):
        own = choice["logprobs"]["token_logprobs"][len(context) : -1]
        top = choice["logprobs"]["top_logprobs"][len(context) : -1]
        is_greedy = all(value == max(likely.values()) for value, likely in zip(own, top, strict=True))
        found.append((sum(own), is_greedy))
    return found


def test_sums_are_those_of_transformers(case, references):
    """Greedy continuations, and others; twice, because the second time the cache has all prompts."""
    name, served = case
    pairs, sums = [], []
    for reference in references(name, LENGTHS, NUM_TOKENS):
        other = reference.greedy[0] % 200 + 1
        for continuation in (reference.greedy[:12], [other]):
            pairs.append((list(reference.prompt), continuation))
            sums.append((sum(expected_of(reference, continuation)), continuation != [other]))
    for _ in range(2):
        found = log_likelihoods(served, pairs)
        assert [greedy for _, greedy in found] == [greedy for _, greedy in sums]
        for (value, _), (expected, _) in zip(found, sums, strict=True):
            assert math.isclose(value, expected, abs_tol=1e-3)


def complete(client: openai.OpenAI, **options: Any) -> Any:
    values = {"model": "model", "prompt": "Once upon", "max_tokens": 6, "temperature": 0, "echo": True, "logprobs": 2}
    return client.completions.create(**values | options, extra_body={"ignore_eos": True})


def test_the_lists_cover_prompt_and_answer_also_in_streams(client):
    choice = complete(client).choices[0]
    lists = choice.logprobs
    assert len(lists.tokens) == len("Once upon") + 6
    assert lists.tokens[:9] == list("Once upon")
    assert lists.text_offset[:10] == list(range(10))
    assert (lists.token_logprobs[0], lists.top_logprobs[0]) == (None, None)
    assert all(value <= 0 for value in lists.token_logprobs[1:])
    assert all(1 <= len(likely) <= 3 for likely in lists.top_logprobs[1:])
    bare = complete(client, echo=False).choices[0]
    assert choice.text == "Once upon" + bare.text
    assert lists.tokens[9:] == bare.logprobs.tokens
    assert lists.token_logprobs[9:] == pytest.approx(bare.logprobs.token_logprobs, abs=1e-5)
    streamed: dict[str, list[Any]] = {name: [] for name in LISTS}
    text = ""
    for chunk in complete(client, stream=True):
        text += chunk.choices[0].text
        for name in LISTS:
            streamed[name] += getattr(chunk.choices[0].logprobs, name)
    assert text == choice.text
    assert streamed["tokens"] == lists.tokens
    assert streamed["text_offset"] == lists.text_offset
    assert streamed["token_logprobs"][1:] == pytest.approx(lists.token_logprobs[1:], abs=1e-5)


def test_choices_share_the_numbers_of_their_prompt(client):
    options = {"prompt": ["Once", "a"], "n": 2, "temperature": 1.3, "seed": 4}
    choices = complete(client, **options).choices
    assert [choice.index for choice in choices] == [0, 1, 2, 3]
    for first, length in ((0, 4), (2, 1)):
        one, other = choices[first].logprobs, choices[first + 1].logprobs
        for name in LISTS:
            assert getattr(one, name)[:length] == getattr(other, name)[:length]
        assert one.tokens != other.tokens
    texts = dict.fromkeys(range(4), "")
    tokens: dict[int, list[str]] = {index: [] for index in range(4)}
    for chunk in complete(client, **options, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
        tokens[chunk.choices[0].index] += chunk.choices[0].logprobs.tokens
    assert list(texts.values()) == [choice.text for choice in choices]
    assert list(tokens.values()) == [choice.logprobs.tokens for choice in choices]


def test_without_a_generated_token_only_the_prompt_returns(client):
    answer = complete(client, max_tokens=0)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == ("Once upon", "length")
    assert choice.logprobs.tokens == list("Once upon")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (9, 0, 9)
    chunks = list(complete(client, max_tokens=0, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "Once upon"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 0
    bare = complete(client, max_tokens=0, logprobs=None).choices[0]
    assert (bare.text, bare.logprobs, bare.finish_reason) == ("Once upon", None, "length")


def test_prompt_logprobs_of_completions_and_chat_have_the_form_of_vllm(case, client):
    echoed = complete(client, logprobs=20).choices[0].logprobs
    url = case[1].url
    body = {"model": "model", "prompt": "Once upon", "max_tokens": 2, "n": 2, "prompt_logprobs": 3, "temperature": 0}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).raise_for_status().json()
    one, other = (choice["prompt_logprobs"] for choice in answer["choices"])
    assert one == other
    tokens = httpx.post(f"{url}/tokenize", json={"prompt": "Once upon"}).json()["tokens"]
    assert len(one) == len(tokens) == 9
    assert one[0] is None
    for token, entry, own in zip(tokens[1:], one[1:], echoed.token_logprobs[1:9], strict=True):
        assert next(iter(entry)) == str(token)
        assert math.isclose(entry[str(token)]["logprob"], own, abs_tol=1e-5)
        assert sorted(number["rank"] for number in entry.values())[:3] == [1, 2, 3]
        assert len(entry) == 3 + (entry[str(token)]["rank"] > 3)
        assert all(set(number) == {"logprob", "rank", "decoded_token"} for number in entry.values())
    chat = {"model": "model", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "prompt_logprobs": 0}
    answer = httpx.post(f"{url}/v1/chat/completions", json=chat, timeout=60).raise_for_status().json()
    first, *others = answer["prompt_logprobs"]
    assert first is None
    assert [len(entry) for entry in others] == [1] * (answer["usage"]["prompt_tokens"] - 1)
    assert "prompt_logprobs" not in answer["choices"][0]
    del chat["prompt_logprobs"]
    answer = httpx.post(f"{url}/v1/chat/completions", json=chat, timeout=60).raise_for_status().json()
    assert "prompt_logprobs" not in answer


def test_api_processes_give_the_same_answers(checkpoint, tmp_path_factory, references):
    model = with_tokenizer(checkpoint("llama-gqa-tied"), tmp_path_factory.mktemp("processes"))
    pairs = [(list(each.prompt), each.greedy[:5]) for each in references("llama-gqa-tied", LENGTHS, NUM_TOKENS)]
    found = []
    for processes in ("1", "2"):
        options = ("--token-budget", "64", "--served-model-name", "model", "--api-processes", processes)
        with serve(model, *options) as served:
            found.append(log_likelihoods(served, pairs))
    assert all(greedy for _, greedy in found[0])
    for (one, is_greedy), (other, is_greedy_again) in zip(*found, strict=True):
        assert is_greedy == is_greedy_again
        assert math.isclose(one, other, abs_tol=1e-4)


def test_an_answer_in_the_journal_has_its_prompts_numbers_again(checkpoint, tmp_path_factory):
    """Before and after the death of the master; the best of three choices. Such a request has no stream."""
    folder = tmp_path_factory.mktemp("journal")
    model = with_tokenizer(checkpoint("llama-gqa-tied"), folder)
    body = {"prompt": ["Once upon", "a"], "max_tokens": 5, "seed": 3, "n": 2, "best_of": 3, "logprobs": 1, "echo": True}
    with serve(model, "--journal", str(folder / "journal")) as served:
        client = httpx.Client(base_url=served.url, timeout=60)
        whole = client.post("/v1/completions", json={**body, "prompt_logprobs": 2}).raise_for_status().json()
        assert [len(choice["prompt_logprobs"]) for choice in whole["choices"]] == [9, 9, 1, 1]
        assert [len(choice["logprobs"]["tokens"]) for choice in whole["choices"]] == [14, 14, 6, 6]
        path = f"/v1/requests/{whole['id']}"
        assert client.get(path).json()["response"] == whole
        refused = client.get(path, headers={"Accept": "text/event-stream"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "accept")
        before = served.master
        os.kill(before, signal.SIGKILL)

        def serves_again() -> bool:
            try:
                return served.master != before and client.get(path).status_code == 200
            except (ValueError, httpx.TransportError):  # ValueError: no master yet
                return False

        assert eventually(serves_again)
        assert client.get(path).json()["response"] == whole
