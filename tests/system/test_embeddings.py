"""Embeddings are those of `transformers`, through master and P x T ranks, and over HTTP with the official client."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import struct
from array import array
from pathlib import Path

import httpx
import openai
import pytest
import torch
import transformers
from orca_master.engine.config import EngineConfig
from orca_master.engine.messages import Output, Submission
from orca_master.scheduling.sampling_parameters import SamplingParameters
from support.checkpoints import MAX_POSITIONS, VARIANTS, make_model, make_prompts, with_tokenizer
from support.engines import Harness, engine_over, topology
from support.served import serve, value
from support.variants import one_short, one_short_row

LENGTHS = (1, 2, 33, 600)
SHORT = ("gpt2-head64-tied", "llama-gqa-tied", "qwen3-unprefixed-tied")
VARIANTS_HERE = [
    name if name in SHORT else pytest.param(name, marks=pytest.mark.exhaustive) for name in sorted(VARIANTS)
]
NAME = "gpt2-head64-tied"


@torch.inference_mode()
def activations(name: str, prompt: tuple[int, ...]) -> torch.Tensor:
    """Return transformers' activations [S, H] after the final norm."""
    hidden: torch.Tensor = make_model(name).base_model(torch.tensor([prompt])).last_hidden_state[0]
    return hidden


@torch.inference_mode()
def test_transformers_reads_the_files_without_a_prefix_as_the_same_model(checkpoint):
    """So that the activations below are also those of the files, as of Qwen3-Embedding's."""
    name, (prompt,) = "qwen3-unprefixed-tied", make_prompts((33,))
    model = transformers.AutoModel.from_pretrained(checkpoint(name)).eval()
    hidden = model(torch.tensor([prompt])).last_hidden_state[0]
    torch.testing.assert_close(hidden, activations(name, prompt))


async def pooled(harness: Harness, prompts: list[tuple[int, ...]], name: str) -> dict[str, torch.Tensor]:
    """Embed the prompts in both ways beside a generation of each; return the sums of activations."""
    for index, prompt in enumerate(prompts):
        for pooling in ("mean", "last"):
            harness.engine.submit(
                Submission(f"{name}-{index}-{pooling}", prompt, 0, SamplingParameters(), frozenset(), pooling=pooling)  # type: ignore[arg-type]
            )
        harness.submit(f"{name}-{index}-text", prompt, 4)
    sums: dict[str, torch.Tensor] = {}
    left = 3 * len(prompts)
    async with asyncio.timeout(120):
        while left:
            output: Output = await harness.outputs.get()
            assert output.error is None
            if output.pooled is not None:
                part = torch.tensor(array("f", output.pooled))
                sums[output.request_id] = sums.get(output.request_id, 0) + part
            left -= output.finish_reason is not None
    return sums


@pytest.mark.parametrize(("partitions", "ranks"), one_short_row([(2, 2), (1, 1), (2, 1)]))
@pytest.mark.parametrize("variant", VARIANTS_HERE)
def test_activations_equal_those_of_transformers(variant, partitions, ranks, checkpoint, worker_pool):
    """Prompts of 1, 2, 33 and 600 tokens, in chunks beside generations; the second time with a full cache."""
    prompts = make_prompts(LENGTHS)

    async def run() -> None:
        spec = topology(checkpoint(variant), worker_pool.addresses(partitions, ranks), ranks)
        async with engine_over(spec, EngineConfig(max_batch_size=5, token_budget=100)) as harness:
            for name in ("first", "again"):
                sums = await pooled(harness, prompts, name)
                for index, prompt in enumerate(prompts):
                    expected = activations(variant, prompt)
                    torch.testing.assert_close(sums[f"{name}-{index}-last"], expected[-1], atol=1e-4, rtol=1e-4)
                    mean = sums[f"{name}-{index}-mean"] / len(prompt)
                    torch.testing.assert_close(mean, expected.mean(dim=0), atol=1e-4, rtol=1e-4)
            harness.assert_nothing_held()

    asyncio.run(run())


def headless(variant: str, path: Path) -> Path:
    """Save the model of a variant without its head, as AutoModel does; with a tokenizer and no chat template."""
    make_model(variant).base_model.save_pretrained(path / variant)
    made = with_tokenizer(path / variant, path / "served")
    (made / "chat_template.jinja").unlink()
    return made


@pytest.mark.parametrize("partitions", one_short([2, 1]))
@pytest.mark.parametrize(
    "variant", one_short(["llama-head80-untied", "mistral-gqa", "qwen2-gqa-tied", "qwen3-gqa-tied"])
)
def test_models_without_a_head_embed_as_in_transformers(variant, partitions, worker_pool, tmp_path):
    """LlamaModel and others in config.json, and names of tensors without a prefix."""
    path, prompts = headless(variant, tmp_path), make_prompts(LENGTHS)
    model = transformers.AutoModel.from_pretrained(path).eval()

    async def run() -> None:
        spec = topology(path, worker_pool.addresses(partitions, 1))
        async with engine_over(spec, EngineConfig(max_batch_size=5, token_budget=100)) as harness:
            sums = await pooled(harness, prompts, "x")
        for index, prompt in enumerate(prompts):
            with torch.inference_mode():
                expected = model(torch.tensor([prompt])).last_hidden_state[0]
            torch.testing.assert_close(sums[f"x-{index}-last"], expected[-1], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(sums[f"x-{index}-mean"], expected.sum(dim=0), atol=1e-3, rtol=1e-4)

    asyncio.run(run())


@pytest.mark.long
def test_a_model_without_a_head_is_served_with_its_own_pooling_and_generates_nothing(tmp_path):
    path, (prompt,) = headless("mistral-gqa", tmp_path), make_prompts((33,))
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": folder} for kind, folder in kinds.items()]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    with torch.inference_mode():
        hidden = transformers.AutoModel.from_pretrained(path).eval()(torch.tensor([prompt])).last_hidden_state[0]
    messages = [{"role": "user", "content": "a"}]
    with serve(path, "--dtype", "float32") as server, httpx.Client(base_url=server.url, timeout=60) as client:
        answer = client.post("/v1/embeddings", json={"input": list(prompt)}).raise_for_status().json()
        expected = torch.nn.functional.normalize(hidden.mean(dim=0), dim=0)
        torch.testing.assert_close(torch.tensor(answer["data"][0]["embedding"]), expected, atol=1e-4, rtol=0)
        for route, body in (
            ("completions", {"prompt": "a"}),
            ("completions", {"prompt": "a", "max_tokens": 0, "echo": True, "logprobs": 0}),
            ("completions", {"prompt": "a", "stream": True}),
            ("chat/completions", {"messages": messages}),
            ("messages", {"messages": messages, "max_tokens": 4}),
            ("responses", {"input": "a"}),
        ):
            refused = client.post(f"/v1/{route}", json={"model": path.name, **body})
            assert refused.status_code == 400, route
            assert (
                "no head and generates no text: only /v1/embeddings, /v1/score and /v1/rerank serve it"
                in refused.json()["error"]["message"]
            )
        (card,) = client.get("/v1/models").raise_for_status().json()["data"]
        assert (card["id"], card["max_model_len"]) == (path.name, MAX_POSITIONS)
        assert any("embeddings only" in line for line in server.log)


@pytest.fixture(
    scope="module",
    params=[pytest.param(options, marks=pytest.mark.long) for options in (("last",), ("mean", "--api-processes", "2"))],
)
def served(request, checkpoint, tmp_path_factory):
    model = with_tokenizer(checkpoint(NAME), tmp_path_factory.mktemp("embed"))
    pooling, *others = request.param
    options = ("--dtype", "float32", "--token-budget", "64", "--served-model-name", "model", "--max-queue-depth", "8")
    with serve(model, "--embedding-pooling", pooling, *options, *others) as server:
        yield server, pooling


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=f"{served[0].url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def expected_of(prompt: tuple[int, ...], pooling: str) -> torch.Tensor:
    hidden = activations(NAME, prompt)
    return torch.nn.functional.normalize(hidden.mean(dim=0) if pooling == "mean" else hidden[-1], dim=0)


def test_the_official_client_gets_unit_vectors(served, client):
    _, pooling = served
    prompts = make_prompts((3, 70, MAX_POSITIONS))
    answer = client.embeddings.create(model="model", input=[list(prompt) for prompt in prompts])  # base64
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    for prompt, entry in zip(prompts, answer.data, strict=True):
        found = torch.tensor(entry.embedding)
        torch.testing.assert_close(found, expected_of(prompt, pooling), atol=1e-4, rtol=0)
        assert math.isclose(float(found.norm()), 1.0, rel_tol=1e-5)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, prompts))
    assert answer.model == "model"


def test_floats_and_base64_are_the_same_numbers(served):
    server, _ = served
    vectors = []
    for encoding_format in ("float", "base64"):
        body = {"input": "a text", "encoding_format": encoding_format}
        answer = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=60).raise_for_status().json()
        assert (answer["object"], answer["data"][0]["object"]) == ("list", "embedding")
        vectors.append(answer["data"][0]["embedding"])
    assert [struct.unpack("<f", struct.pack("<f", number))[0] for number in vectors[0]] == list(
        struct.unpack(f"<{len(vectors[0])}f", base64.b64decode(vectors[1]))
    )


def test_the_prefix_cache_and_the_metrics_count_embeddings(served):
    server, pooling = served
    (prompt,) = make_prompts((200,))
    httpx.post(f"{server.url}/v1/embeddings", json={"input": list(prompt)}, timeout=60).raise_for_status()
    before = httpx.get(f"{server.url}/metrics").text
    httpx.post(f"{server.url}/v1/embeddings", json={"input": list(prompt)}, timeout=60).raise_for_status()
    after = httpx.get(f"{server.url}/metrics").text
    gained = {
        name: value(after, name) - value(before, name)
        for name in ("prompt_tokens_total", "generation_tokens_total", "prefix_cache_hits_total")
    }
    cached = 192 if pooling == "last" else 0  # the mean needs every token
    assert gained == {"prompt_tokens_total": 200, "generation_tokens_total": 0, "prefix_cache_hits_total": cached}


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({}, "input: Field required", "input"),
        ({"input": ""}, "input: a text is empty", "input"),
        ({"input": [[1], []]}, "input", "input"),
        ({"input": [10**6]}, "token id 1000000 is not below the vocabulary size", "input"),
        ({"input": [1] * (MAX_POSITIONS + 1)}, f"{MAX_POSITIONS + 1} tokens", "input"),
        ({"input": ["a"] * 9}, "9 texts, at most 8 can wait (--max-queue-depth)", "input"),
        (
            {"input": "a", "dimensions": 8},
            "dimensions: is not supported: vectors have the model's hidden size",
            "dimensions",
        ),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "encoding_format"),
    ],
)
def test_bad_requests_name_the_field(served, body, message, param):
    response = httpx.post(f"{served[0].url}/v1/embeddings", json=body, timeout=60)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert message in error["message"]


def test_another_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="other", input="a")
