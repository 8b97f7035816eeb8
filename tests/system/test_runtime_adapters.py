"""Adapters that are loaded and unloaded while `orca serve` runs give the tokens of those of the start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from orca_master.engine.config import EngineConfig
from orca_master.engine.messages import Submission
from orca_master.scheduling.sampling_parameters import SamplingParameters
from support.checkpoints import make_model, make_prompts, reference, with_long_context, with_tokenizer
from support.engines import engine_over, topology
from support.lora import ALL, ATTENTION, GPT2, fill_with_nan, make_adapter
from support.served import Served, eventually, serve, worker_pid

pytestmark = pytest.mark.long

VARIANT = "llama-gqa-tied"
LENGTHS = (1, 33, 150)
NUM_TOKENS = 12
(PROMPT,) = make_prompts((40,))
FORMS = {
    VARIANT: [(4, ATTENTION, {}), (8, ALL, {"use_rslora": True})],
    "gpt2-head64-tied": [(4, GPT2, {}), (2, ("c_fc", "c_proj"), {})],
}


@pytest.mark.parametrize(
    ("variant", "partitions", "ranks"),
    [
        (VARIANT, 2, 2),
        (VARIANT, 1, 1),
        ("gpt2-head64-tied", 2, 2),
        pytest.param("gpt2-head64-tied", 1, 2, marks=pytest.mark.exhaustive),
    ],
)
def test_loaded_adapters_in_one_batch_equal_the_merged_models(
    variant, partitions, ranks, checkpoint, worker_pool, tmp_path
):
    """They are loaded while requests of the model run, and give what `transformers` computes with merged weights."""
    models = [make_model(variant)]
    for number, (rank, targets, config) in enumerate(FORMS[variant], 1):
        models.append(make_adapter(tmp_path / str(number), variant, number, rank, targets, **config))
    prompts = make_prompts(LENGTHS)
    expected = {
        (number, index): reference(model, prompt, NUM_TOKENS).greedy  # type: ignore[arg-type]
        for number, model in enumerate(models)
        for index, prompt in enumerate(prompts)
    }
    assert len({tuple(tokens) for (_, index), tokens in expected.items() if index == 2}) == len(models)

    async def run() -> None:
        spec = topology(checkpoint(variant), worker_pool.addresses(partitions, ranks), ranks)
        config = EngineConfig(max_batch_size=7, token_budget=64, runtime_adapters=tmp_path)
        async with engine_over(spec, config) as harness:

            def submit(number: int, index: int) -> None:
                request = f"{number}-{index}", prompts[index], NUM_TOKENS, SamplingParameters(), frozenset[int]()
                harness.engine.submit(Submission(*request, cache_salt=str(number), adapter=number))

            for index in range(len(prompts)):
                submit(0, index)
            for number in range(1, len(models)):
                await harness.engine.adapters.load(str(number), str(number), "")
            for number in range(1, len(models)):
                for index in range(len(prompts)):
                    submit(number, index)
            tokens = await harness.collect(len(expected))
            assert tokens == {f"{number}-{index}": found for (number, index), found in expected.items()}
            harness.assert_nothing_held()

    asyncio.run(run())


@pytest.fixture(scope="module")
def made(checkpoint, tmp_path_factory) -> tuple[Path, Path, dict[str, torch.nn.Module]]:
    """Return a model's folder, a folder of adapters, and the merged models by the adapters' names."""
    folder = tmp_path_factory.mktemp("runtime")
    model = with_tokenizer(with_long_context(checkpoint(VARIANT), folder / "long"), folder)
    merged = {
        name: make_adapter(folder / "adapters" / name, VARIANT, seed, 4, ALL)
        for seed, name in enumerate(("sql", "poems"), 1)
    }
    shutil.copytree(folder / "adapters" / "sql", folder / "outside" / "sql")
    (folder / "adapters" / "escape").symlink_to(folder / "outside" / "sql")
    (folder / "adapters" / "empty").mkdir()
    shutil.copytree(folder / "adapters" / "sql", folder / "adapters" / "nan")
    fill_with_nan(folder / "adapters" / "nan")
    return model, folder / "adapters", merged


def options(adapters: Path, *more: str) -> tuple[str, ...]:
    return "--dtype", "float32", "--served-model-name", "base", "--enable-runtime-adapters", str(adapters), *more


def post(served: Served, route: str, body: dict[str, Any], key: str = "none") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{served.url}/v1/{route}", json=body, headers=headers, timeout=120)


def load(served: Served, name: str, path: str, key: str = "none") -> httpx.Response:
    return post(served, "load_lora_adapter", {"lora_name": name, "lora_path": path}, key)


def unload(served: Served, name: str, key: str = "none") -> httpx.Response:
    return post(served, "unload_lora_adapter", {"lora_name": name}, key)


def ask(served: Served, model: str, key: str = "none", **more: Any) -> httpx.Response:
    body = {"model": model, "prompt": list(PROMPT), "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    return post(served, "completions", body | more, key)


def tokens(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    return list(answer.json()["choices"][0]["token_ids"])


def names(served: Served, key: str = "none") -> list[str]:
    answer = httpx.get(f"{served.url}/v1/models", headers={"authorization": f"Bearer {key}"})
    return [card["id"] for card in answer.json()["data"]]


@pytest.fixture(scope="module")
def expected(made) -> dict[str, list[int]]:
    _, _, merged = made
    models = {"base": make_model(VARIANT), **merged}
    found = {name: reference(model, PROMPT, 8).greedy for name, model in models.items()}
    assert len({tuple(each) for each in found.values()}) == 3
    return found


@pytest.fixture(scope="module", params=["0", pytest.param("2", marks=pytest.mark.exhaustive)])
def served(request, made) -> Iterator[Served]:
    model, adapters, _ = made
    with serve(model, *options(adapters, "--api-processes", request.param)) as server:
        yield server


def test_an_adapter_is_served_while_it_is_loaded(served, made, expected):
    """Under two names at once, of which each keeps its prefixes for itself; and again after it was unloaded."""
    _, adapters, _ = made
    assert ask(served, "sql").status_code == 404
    for name, path in (("sql", "sql"), ("poems", str(adapters / "poems")), ("other", "poems")):
        answer = load(served, name, path)
        assert (answer.status_code, answer.json()["id"]) == (200, name), answer.text
    assert names(served) == ["base", "sql", "poems", "other"]
    assert tokens(ask(served, "other")) == expected["poems"]
    for name, found in expected.items():
        assert tokens(ask(served, name)) == found
    assert [unload(served, name).status_code for name in ("sql", "poems", "other")] == [200] * 3
    assert names(served) == ["base"]
    assert ask(served, "sql").json()["error"]["code"] == "model_not_found"
    assert load(served, "sql", "poems").status_code == 200
    assert tokens(ask(served, "sql")) == expected["poems"]
    assert unload(served, "sql").status_code == 200


def test_what_is_wrong_is_refused_by_its_field(served, made):
    _, adapters, _ = made
    outside = str(adapters.parent / "outside" / "sql")
    assert load(served, "sql", "sql").status_code == 200
    for name, path, field in (
        ("sql", "poems", "lora_name"),
        ("base", "poems", "lora_name"),
        ("x", "../outside/sql", "lora_path"),
        ("x", outside, "lora_path"),
        ("x", "escape", "lora_path"),
        ("x", "empty", "lora_path"),
        ("x", "nan", "lora_path"),
        ("x", "none", "lora_path"),
    ):
        refused = load(served, name, path)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, field), refused.text
        assert str(adapters) not in error["message"]
    assert load(served, "x", "../none").json() == load(served, "x", "../outside/sql").json()
    assert unload(served, "base").status_code == 400
    assert names(served) == ["base", "sql"]
    assert unload(served, "sql").status_code == 200


def test_a_stream_finishes_with_its_adapter_while_that_is_unloaded(served, made):
    long = {"max_tokens": 300, "ignore_eos": True}
    assert load(served, "sql", "sql").status_code == 200
    undisturbed = tokens(ask(served, "sql", **long))
    body = {"model": "sql", "prompt": list(PROMPT), "temperature": 0, "stream": True, "return_token_ids": True, **long}
    found: list[int] = []
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=120) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            if not found:
                assert unload(served, "sql").status_code == 200
                assert ask(served, "sql").status_code == 404
                assert load(served, "sql", "poems").status_code == 200  # the name is free
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                found += choice.get("token_ids") or []
    assert found == undisturbed
    assert unload(served, "sql").status_code == 200


@pytest.mark.exhaustive
def test_keys_have_adapters_of_their_own(made, expected, tmp_path):
    """Those of a key that is removed from the file are unloaded by the next load, and their names are free."""
    model, adapters, _ = made
    keys = tmp_path / "keys"
    keys.write_text("one\n")
    with serve(model, *options(adapters, "--api-key-file", str(keys), "--api-key", "two")) as server:
        assert load(server, "sql", "sql", "one").status_code == 200
        assert (names(server, "one"), names(server, "two")) == (["base", "sql"], ["base"])
        assert tokens(ask(server, "sql", "one")) == expected["sql"]
        assert ask(server, "sql", "two").status_code == 404
        taken = load(server, "sql", "poems", "two")
        assert (taken.status_code, taken.json()["error"]["param"]) == (400, "lora_name")
        assert unload(server, "sql", "two").json()["error"]["message"].endswith("another API key loaded it")
        assert load(server, "poems", "poems", "two").status_code == 200
        assert tokens(ask(server, "poems", "two")) == expected["poems"]
        assert unload(server, "sql", "one").status_code == 200
        assert tokens(ask(server, "poems", "two")) == expected["poems"]
        assert load(server, "sql", "sql", "one").status_code == 200
        keys.write_text("three\n")
        assert eventually(lambda: load(server, "sql", "poems", "two").status_code == 200), server.log
        assert tokens(ask(server, "sql", "two")) == expected["poems"]
        assert ask(server, "sql", "one").status_code == 401


@pytest.mark.exhaustive
@pytest.mark.parametrize("victim", ["rank", "controller"])
def test_a_lost_worker_has_the_adapters_again(made, expected, victim):
    """The stream of an adapter goes on with the same tokens, and its files are gone when a second one is lost."""
    model, adapters, _ = made
    copy = adapters.parent / f"copy-{victim}"
    shutil.copytree(adapters, copy, symlinks=True)
    long = {"max_tokens": 400, "ignore_eos": True}
    with serve(model, *options(copy, "-pp", "2")) as server, ThreadPoolExecutor(1) as pool:
        for name in ("sql", "poems"):
            assert load(server, name, name).status_code == 200
        undisturbed = tokens(ask(server, "sql", **long))
        running = pool.submit(ask, server, "sql", **long)
        os.kill(worker_pid(server, 1, victim), signal.SIGKILL)
        assert tokens(running.result()) == undisturbed
        assert any("pipeline local-0 is lost" in line for line in server.log)
        for name, found in expected.items():
            assert tokens(ask(server, name)) == found
        shutil.rmtree(copy / "sql")
        os.kill(worker_pid(server, 0, victim), signal.SIGKILL)
        assert eventually(lambda: names(server) == ["base", "poems"]), server.log
        assert tokens(ask(server, "poems")) == expected["poems"]
        assert ask(server, "sql").status_code == 404


def test_a_restarted_master_has_no_adapters_and_its_workers_lose_theirs(made, expected):
    model, adapters, _ = made
    with serve(model, *options(adapters)) as server:
        assert load(server, "sql", "sql").status_code == 200
        master = server.master
        os.kill(master, signal.SIGKILL)
        assert eventually(lambda: server.process.poll() is None and names_or_none(server) == ["base"]), server.log
        assert ask(server, "sql").status_code == 404
        assert load(server, "poems", "poems").status_code == 200  # the same number as before, other files
        assert tokens(ask(server, "poems")) == expected["poems"]
        assert tokens(ask(server, "base")) == expected["base"]


def names_or_none(server: Served) -> list[str] | None:
    try:
        return names(server)
    except (httpx.HTTPError, KeyError, ValueError):
        return None


def test_a_folder_that_is_missing_ends_the_start(made, tmp_path):
    model, _, _ = made
    failed = Served([str(model), *options(tmp_path / "none")])
    assert failed.process.wait(120) == 2
    failed._reader.join(10)
    assert f"--enable-runtime-adapters: the worker has no folder {tmp_path / 'none'}" in failed.log[-1]


def test_a_killed_master_continues_the_requests_of_adapters(made, tmp_path):
    """It loads their adapters again; one whose files have changed ends its requests with an error that says so."""
    model, adapters, _ = made
    copy = tmp_path / "adapters"
    shutil.copytree(adapters, copy, symlinks=True)
    long = {"max_tokens": 1500, "ignore_eos": True}
    with serve(model, *options(copy, "--journal", str(tmp_path / "journal"))) as server:
        for name in ("sql", "poems"):
            assert load(server, name, name).status_code == 200
        undisturbed = tokens(ask(server, "sql", **long))
        with contextlib.ExitStack() as streams:  # a client that leaves would cancel its request
            shutil.copy(copy / "sql" / "adapter_model.safetensors", copy / "poems")
            before = server.master
            ids = {name: _begin(streams, server, name, **long) for name in ("base", "sql", "poems")}
            os.kill(before, signal.SIGKILL)
        assert eventually(lambda: server.has_other_master(before))
        found = {name: _ended(server, request_id) for name, request_id in ids.items()}
        assert [found[name]["status"] for name in ("base", "sql")] == ["completed"] * 2, found
        assert found["sql"]["response"]["choices"][0]["token_ids"] == undisturbed
        assert found["sql"]["response"]["model"] == "sql"
        assert found["base"]["response"]["choices"][0]["token_ids"] != undisturbed
        assert found["poems"]["error"] == (
            "the adapter 'poems' could not be loaded again after the master's end: lora_path: the files have changed"
        )
        assert names(server) == ["base"]
        assert load(server, "sql", "sql").status_code == 200, "the name is free"
        assert tokens(ask(server, "sql", **long)) == undisturbed


@pytest.mark.exhaustive
def test_a_killed_master_continues_the_batches_of_adapters(made, tmp_path):
    """The lines of an adapter have its tokens also after the restart, which leaves its name free."""
    model, adapters, _ = made
    body = {"model": "sql", "prompt": list(PROMPT), "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    folder = tmp_path / "batches"
    more = ("--batch-directory", str(folder), "--batch-concurrency", "1")
    with serve(model, *options(adapters, *more)) as server:
        assert load(server, "sql", "sql").status_code == 200
        alone = post(server, "completions", body).json()["choices"][0]["text"]
        lines = [{"custom_id": f"{n}", "method": "POST", "url": "/v1/completions", "body": body} for n in range(20)]
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="-")
        file = client.files.create(file=("in.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        assert eventually(lambda: any(b'"status_code": 200' in path.read_bytes() for path in folder.glob("files/*")))
        before = server.master
        os.kill(before, signal.SIGKILL)
        assert eventually(lambda: server.has_other_master(before))
        assert eventually(lambda: any("1 batches are continued" in line for line in server.log)), "all were answered"
        assert eventually(lambda: client.batches.retrieve(batch.id).status == "completed")
        done = client.batches.retrieve(batch.id)
        assert done.request_counts is not None
        assert (done.request_counts.completed, done.request_counts.failed) == (len(lines), 0)
        assert done.output_file_id is not None
        answers = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
        assert {answer["response"]["body"]["choices"][0]["text"] for answer in answers} == {alone}
        assert names(server) == ["base"]
        assert load(server, "sql", "poems").status_code == 200, "the name is free"


def _begin(streams: contextlib.ExitStack, served: Served, name: str, **more: Any) -> str:
    """Begin a streamed request of an adapter; return its id once it has a token."""
    body = {"model": name, "prompt": list(PROMPT), "temperature": 0, "stream": True, "return_token_ids": True}
    request = httpx.stream("POST", f"{served.url}/v1/completions", json=body | more, timeout=120)
    lines = streams.enter_context(request).iter_lines()
    streams.callback(lines.close)  # type: ignore[attr-defined]  # an iterator that nobody holds closes the connection
    event = next(line for line in lines if line.startswith("data: {"))
    return str(json.loads(event.removeprefix("data: "))["id"])


def _ended(served: Served, request_id: str) -> dict[str, Any]:
    """Return what the server says of a request in the journal after its end."""
    answers: list[dict[str, Any]] = []

    def has_ended() -> bool:
        try:
            answers.append(httpx.get(f"{served.url}/v1/requests/{request_id}", timeout=60).json())
        except httpx.TransportError:  # a connection to the killed master
            return False
        return answers[-1]["status"] != "in_progress"

    assert eventually(has_ended), (answers[-1:], served.log)
    return answers[-1]
