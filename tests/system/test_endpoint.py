"""The endpoint as people use it: the official client, plain HTTP, and every error in OpenAI's shape."""

from __future__ import annotations

import json

import httpx
import openai
import pytest
from support.checkpoints import MAX_POSITIONS, VOCABULARY, with_tokenizer
from support.served import serve, value

NAME = "llama-gqa-tied"
END = 20
"""Generated token of the 33-token prompt that the model under test takes for end-of-sequence."""


@pytest.fixture(scope="module")
def model(checkpoint, references, tmp_path_factory):
    """Return a checkpoint whose end-of-sequence token is one that it generates."""
    (reference,) = references(NAME, (33,), 32)
    return with_tokenizer(checkpoint(NAME), tmp_path_factory.mktemp("endpoint"), eos=reference.greedy[END])


@pytest.fixture(
    scope="module", params=["0", pytest.param("2", marks=pytest.mark.long)], ids=lambda count: f"{count}-api-processes"
)
def served(request, model):
    options = ("-pp", "2", "--kv-slots", "640", "--max-batch-size", "8", "--api-processes", request.param)
    with serve(model, *options) as server:
        yield server


@pytest.fixture(scope="module")
def client(served):
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60)


def test_completion_and_stream_of_the_official_client_agree(client):
    options = {
        "model": NAME,
        "prompt": "Hello,ORCA",
        "max_tokens": 24,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.completions.create(**options)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.prompt_tokens == len("Hello,ORCA")
    assert whole.usage.completion_tokens == 24
    chunks = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_token_ids_in_and_out(client, references):
    (reference,) = references(NAME, (33,), 32)
    answer = client.completions.create(
        model=NAME, prompt=list(reference.prompt), max_tokens=32, temperature=0,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )  # fmt: skip
    assert answer.choices[0].token_ids == reference.greedy
    assert answer.choices[0].prompt_token_ids == list(reference.prompt)
    assert answer.choices[0].finish_reason == "length"


def test_end_of_sequence_stops_unless_ignored(client, references):
    """The model's end-of-sequence token is one that it generates on the way (see the fixture `model`)."""
    (reference,) = references(NAME, (33,), 32)
    options = {"model": NAME, "prompt": list(reference.prompt), "max_tokens": 32, "temperature": 0}
    stopped = client.completions.create(**options, extra_body={"return_token_ids": True})
    assert stopped.choices[0].finish_reason == "stop"
    expected = reference.greedy[: reference.greedy.index(reference.greedy[END]) + 1]
    assert stopped.choices[0].token_ids == expected
    endless = client.completions.create(**options, extra_body={"return_token_ids": True, "ignore_eos": True})
    assert endless.choices[0].token_ids == reference.greedy


def test_seed_decides_what_is_drawn(client):
    def draw(seed):
        answer = client.completions.create(
            model=NAME, prompt="seed", max_tokens=20, temperature=1.0, top_p=0.9, seed=seed,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )  # fmt: skip
        return answer.choices[0].token_ids

    assert draw(1) == draw(1)
    assert draw(-1) == draw(-1)
    assert len({tuple(draw(seed)) for seed in (1, 2, None, None)}) == 4


def test_models_probes_and_metrics(client, served):
    (card,) = client.models.list().data
    assert (card.id, card.max_model_len) == (NAME, MAX_POSITIONS)
    for path in ("/livez", "/readyz"):
        assert httpx.get(served.url + path).status_code == 200
    client.completions.create(model=NAME, prompt="count me", max_tokens=3, temperature=0)
    metrics = httpx.get(f"{served.url}/metrics").text
    for name in ("prompt_tokens_total", "time_to_first_token_seconds_count", "iteration_batch_size_sum"):
        assert value(metrics, name) > 0
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert value(metrics, name) == 0
    for name in ("stage_busy", "stage_bubble"):
        assert f'orca:{name}_seconds_total{{model_name="llama-gqa-tied",partition="1"' in metrics
    assert 'vllm:generation_tokens_total{engine="0",model_name="llama-gqa-tied"}' in metrics


@pytest.mark.parametrize(
    ("change", "status", "field", "words"),
    [
        ({"max_tokens": 0}, 400, "max_tokens", "0 is only allowed with echo: true: send at least 1"),
        ({"max_tokens": "many"}, 400, "max_tokens", "integer"),
        ({"temperature": -0.1}, 400, "temperature", "greater than or equal to 0"),
        ({"top_p": 0}, 400, "top_p", "greater than 0"),
        ({"seed": 2**70}, 400, "seed", "less than"),
        ({"prompt": ""}, 400, "prompt", "empty"),
        ({"prompt": []}, 400, "prompt", "prompt: List should have at least 1 item"),
        ({"prompt": [VOCABULARY]}, 400, "prompt", f"token id {VOCABULARY} is not below the vocabulary size"),
        ({"prompt": [-1]}, 400, "prompt", "greater than or equal to 0"),
        ({"prompt": None}, 400, "prompt", "valid"),
        ({"frobnicate": 1}, 400, "frobnicate", "unknown or not supported"),
        ({"model": "other"}, 404, "model", "'other' does not exist"),
        ({"max_tokens": MAX_POSITIONS}, 400, "max_tokens", f"maximum context length is {MAX_POSITIONS} tokens"),
        ({"max_tokens": 690}, 400, "max_tokens", "need 704 K/V slots (rounded to blocks of 16), this server has 640"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_bad_input_names_the_field_and_the_numbers(served, change, status, field, words, stream):
    body = {"model": NAME, "prompt": "hello", "max_tokens": 4, "stream": stream, **change}
    answer = httpx.post(f"{served.url}/v1/completions", json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["param"] == field
    assert words in error["message"]
    assert error["type"] in ("invalid_request_error", "not_found_error")


def test_broken_bodies_and_paths(served):
    answer = httpx.post(f"{served.url}/v1/completions", content=b"{", headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    for method, path, status in (("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)):
        answer = httpx.request(method, served.url + path)
        assert (answer.status_code, set(answer.json())) == (status, {"error"})


def test_official_client_raises_its_own_errors(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=NAME, prompt="x", max_tokens=10**6)
    assert refused.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="nobody", prompt="x")


def test_a_client_that_leaves_frees_its_slots(served):
    """Both forms: a stream that is dropped, and a plain request that is given up."""
    body = {"model": NAME, "prompt": "x", "max_tokens": 600, "ignore_eos": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json={**body, "stream": True}) as answer:
        assert json.loads(next(answer.iter_lines())[6:])["object"] == "text_completion"
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{served.url}/v1/completions", json=body, timeout=0.3)
    # 600 tokens fill all slots: this one can only run once both are gone.
    answer = httpx.post(f"{served.url}/v1/completions", json={**body, "max_tokens": 630}, timeout=60)
    assert answer.status_code == 200
