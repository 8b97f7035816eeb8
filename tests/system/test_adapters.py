"""Adapters: the model and several adapters in one batch give the tokens of the merged models of `transformers`."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess

import httpx
import openai
import pytest
import torch
from orca_contract.topology import AdapterSpec
from orca_master.engine.config import EngineConfig
from orca_master.engine.messages import Submission
from orca_master.scheduling.sampling_parameters import SamplingParameters
from support.checkpoints import make_model, make_prompts, reference, with_tokenizer
from support.engines import engine_over, topology
from support.lora import ALL, ATTENTION, GPT2, make_adapter
from support.served import ORCA, serve
from support.variants import one_short_row

LENGTHS = (1, 33, 150)
WANTED = SamplingParameters(prompt_logprobs=0)
NUM_TOKENS = 16
FORMS = {
    "llama-gqa-tied": [(4, ATTENTION, {}), (8, ALL, {"use_rslora": True}), (1, ("down_proj",), {"lora_alpha": 3})],
    "gpt2-head64-tied": [(4, GPT2, {}), (8, ("c_attn",), {"use_rslora": True}), (2, ("c_fc", "c_proj"), {})],
    "gemma2-gqa-tied": [(4, ALL, {})],
    "qwen3-head80": [(4, ALL, {})],
}
VARIANTS = [
    name if name in ("llama-gqa-tied", "gpt2-head64-tied") else pytest.param(name, marks=pytest.mark.exhaustive)
    for name in FORMS
]


@pytest.mark.parametrize(
    ("partitions", "ranks"),
    [
        pytest.param(1, 1, marks=pytest.mark.long),
        pytest.param(2, 1, marks=pytest.mark.long),
        pytest.param(1, 2, marks=pytest.mark.exhaustive),
        (2, 2),
    ],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_adapters_in_one_batch_equal_the_merged_models(variant, partitions, ranks, checkpoint, worker_pool, tmp_path):
    """Chunks, increments, cached prefixes and log probabilities of prompts, each with the model and every adapter."""
    models = [make_model(variant)]
    adapters = []
    for number, (rank, targets, config) in enumerate(FORMS[variant], 1):
        folder = tmp_path / f"adapter {number}"
        models.append(make_adapter(folder, variant, number, rank, targets, **config))
        adapters.append(AdapterSpec(name=str(number), path=str(folder)))
    prompts = make_prompts(LENGTHS)
    expected = {
        (number, index): reference(model, prompt, NUM_TOKENS)  # type: ignore[arg-type]
        for number, model in enumerate(models)
        for index, prompt in enumerate(prompts)
    }
    assert len({tuple(entry.greedy) for (_, index), entry in expected.items() if index == 2}) == len(models)

    async def run() -> None:
        spec = topology(checkpoint(variant), worker_pool.addresses(partitions, ranks), ranks)
        spec = spec.model_copy(update={"model": spec.model.model_copy(update={"adapters": adapters})})
        async with engine_over(spec, EngineConfig(max_batch_size=7, token_budget=64)) as harness:
            for name in ("first", "again"):
                harness.prompt_logprobs.clear()
                for number, index in expected:
                    request = f"{name}-{number}-{index}", prompts[index], NUM_TOKENS, WANTED, frozenset[int]()
                    harness.engine.submit(Submission(*request, cache_salt=str(number), adapter=number))
                tokens = await harness.collect(len(expected))
                for (number, index), entry in expected.items():
                    assert tokens[f"{name}-{number}-{index}"] == entry.greedy
                    parts = harness.prompt_logprobs.get(f"{name}-{number}-{index}", [])
                    found = torch.tensor([value for part in parts for value in part.logprob])
                    length = len(entry.prompt)
                    rows = torch.log_softmax(entry.logits[: length - 1], dim=-1)
                    targets = torch.tensor(entry.prompt[1:], dtype=torch.int64).unsqueeze(1)
                    torch.testing.assert_close(found, rows.gather(1, targets).squeeze(1), atol=2e-4, rtol=0)
            harness.assert_nothing_held()

    asyncio.run(run())


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_the_model_and_three_adapters_in_one_batch_equal_four_separate_runs(checkpoint, worker_pool, tmp_path, dtype):
    """Greedy tokens and drawn ones; each of the separate runs has only the model or one adapter."""
    variant = "llama-gqa-tied"
    specs = [AdapterSpec(name=str(number), path=str(tmp_path / str(number))) for number in (1, 2, 3)]
    for number, (rank, targets, config) in enumerate(FORMS[variant], 1):
        make_adapter(tmp_path / str(number), variant, number, rank, targets, **config)
    sampling = [SamplingParameters(), *(SamplingParameters(temperature=0.9, seed=seed) for seed in (3, 4))]
    cases = list(zip(make_prompts(LENGTHS), sampling, strict=True))

    async def run(models: range) -> dict[str, list[int]]:
        """Return the tokens of a run with requests for these adapters, which alone are loaded; 0 is the model."""
        spec = topology(checkpoint(variant), worker_pool.addresses(1))
        adapters = [specs[number - 1] for number in models if number]
        options = {"adapters": adapters, "dtype": dtype}
        spec = spec.model_copy(update={"model": spec.model.model_copy(update=options)})
        config = EngineConfig(max_batch_size=7, token_budget=64, deterministic=dtype == "float32")
        async with engine_over(spec, config) as harness:
            for number in models:
                place = adapters.index(specs[number - 1]) + 1 if number else 0
                for index, (prompt, parameters) in enumerate(cases):
                    request = f"{number}-{index}", prompt, NUM_TOKENS, parameters, frozenset[int]()
                    harness.engine.submit(Submission(*request, cache_salt=str(number), adapter=place))
            return await harness.collect(len(models) * len(cases))

    together = asyncio.run(run(range(4)))
    assert len({tuple(tokens) for tokens in together.values()}) == 4 * len(cases)
    for number in range(4):
        alone = asyncio.run(run(range(number, number + 1)))
        assert alone == {name: tokens for name, tokens in together.items() if name.startswith(f"{number}-")}


@pytest.fixture(scope="module")
def adapted(checkpoint, tmp_path_factory):
    """Return a model's folder and two adapters of it with their merged models."""
    folder = tmp_path_factory.mktemp("adapted")
    model = with_tokenizer(checkpoint("llama-gqa-tied"), folder)
    merged = {
        name: make_adapter(folder / name, "llama-gqa-tied", seed, 4, ALL) for seed, name in enumerate(("sql", "poems"))
    }
    return model, folder, merged


@pytest.fixture(scope="module", params=["0", pytest.param("2", marks=pytest.mark.long)])
def served(request, adapted):
    model, folder, _ = adapted
    modules = ("--lora-modules", f"sql={folder / 'sql'}", f"poems={folder / 'poems'}")
    options = ("--dtype", "float32", "--served-model-name", "base", "--api-processes", request.param)
    with serve(model, *options, *modules) as server:
        yield server


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_a_request_names_the_adapter_as_its_model(adapted, client):
    _, _, merged = adapted
    (prompt,) = make_prompts((40,))
    models = {"base": make_model("llama-gqa-tied"), **merged}
    for name, model in models.items():
        answer = client.completions.create(
            model=name, prompt=list(prompt), max_tokens=8, temperature=0, extra_body={"return_token_ids": True}
        )
        assert answer.model == name
        assert answer.choices[0].token_ids == reference(model, prompt, 8).greedy  # type: ignore[attr-defined]
        vector = torch.tensor(client.embeddings.create(model=name, input=list(prompt)).data[0].embedding)
        with torch.inference_mode():
            hidden = model.base_model(torch.tensor([prompt])).last_hidden_state[0, -1]
        torch.testing.assert_close(vector, torch.nn.functional.normalize(hidden, dim=0), atol=1e-4, rtol=0)


def test_the_other_routes_take_adapters_too(served, client):
    messages = [{"role": "user", "content": "hello"}]
    assert client.chat.completions.create(model="sql", messages=messages, max_tokens=2).model == "sql"  # type: ignore[arg-type]
    assert client.responses.create(model="poems", input="hello", max_output_tokens=2).model == "poems"
    body = {"model": "sql", "messages": messages, "max_tokens": 2}
    assert httpx.post(f"{served.url}/v1/messages", json=body, timeout=60).json()["model"] == "sql"
    stream = client.completions.create(model="poems", prompt="a", max_tokens=2, stream=True)
    assert {chunk.model for chunk in stream} == {"poems"}


def test_models_are_listed_with_their_parent(client):
    cards = {card.id: getattr(card, "parent", None) for card in client.models.list()}
    assert cards == {"base": None, "sql": "base", "poems": "base"}
    assert client.models.retrieve("sql").id == "sql"
    with pytest.raises(openai.NotFoundError, match="serves 'base', 'sql', 'poems'"):
        client.models.retrieve("other")


def test_a_cached_prefix_is_not_shared_with_another_adapter(client):
    (prompt,) = make_prompts((65,))
    prompt = prompt[::-1]

    def cached(name: str) -> int:
        answer = client.completions.create(model=name, prompt=list(prompt), max_tokens=1)
        return answer.usage.prompt_tokens_details.cached_tokens  # type: ignore[union-attr, return-value]

    assert [cached(name) for name in ("base", "sql", "poems", "sql", "base")] == [0, 0, 0, 64, 64]


@pytest.mark.parametrize(
    ("change", "message"),
    one_short_row(
        [
            ({"use_dora": True}, "use_dora: is not supported"),
            ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported"),
            ({"bias": "all"}, "bias 'all' is not supported"),
            ({"r": 5}, "has shape [4, 200], [5, 200] is expected"),
            ({"rank_pattern": {"q_proj": 8}}, "rank_pattern: is not supported"),
            ({"r": 0}, "r: "),
            (None, "adapter_config.json: No such file"),
        ]
    ),
)
def test_an_adapter_that_does_not_fit_ends_the_start_in_one_line(adapted, tmp_path, change, message):
    model, folder, _ = adapted
    broken = shutil.copytree(folder / "sql", tmp_path / "broken")
    path = broken / "adapter_config.json"
    if change is None:
        path.unlink()
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    command = [*ORCA, "serve", str(model), "--port", "0", "--lora-modules", f"x={broken}"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 2, answer.stderr
    (line,) = answer.stderr.strip().splitlines()
    assert "adapter x: " in line
    assert message in line


@pytest.mark.long
def test_a_cycle_of_links_is_one_line(adapted, tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    command = [*ORCA, "serve", str(adapted[0]), "--port", "0", "--lora-modules", f"x={tmp_path / 'loop'}"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 2, answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (["sql"], "'sql' is not of the form NAME=DIR"),
        ([f"{'a' * 257}=x"], "a name of 257 characters, at most 256 are possible"),
        (["a=x", "a=y"], "--lora-modules: 'a' is also the name of the model or of another adapter"),
        (["base=x"], "--lora-modules: 'base' is also the name"),
        ([f"{number}=x" for number in range(65)], "65 adapters, at most 64 are possible"),
    ],
)
def test_names_are_checked_before_files(adapted, modules, message):
    model, _, _ = adapted
    command = [*ORCA, "serve", str(model), "--port", "0", "--served-model-name", "base", "--lora-modules", *modules]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 2, answer.stderr
    assert message in answer.stderr
