"""`thinking_token_budget` with real workers: the same tokens through HTTP, in Python and after a killed master."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from orca import LLM, SamplingParams
from support.checkpoints import make_model, make_prompts, with_tokenizer
from support.resuming import Transcript, by_choice, stream
from support.served import serve
from support.variants import one_short

DEMO = Path(__file__).parents[2] / "examples" / "demo-model"
OPTIONS = ("--dtype", "float32", "--reasoning-parser", "deepseek_r1")
QUESTION = {"messages": [{"role": "user", "content": "Once"}]}
BASE: dict[str, Any] = {
    "max_tokens": 60, "temperature": 0.9, "seed": 3, "ignore_eos": True, "return_token_ids": True
}  # fmt: skip


@pytest.fixture(scope="module", params=one_short(["0", "2"]))
def client(request):
    with (
        serve(DEMO, *OPTIONS, "--api-processes", request.param, "--speculative-tokens", "3") as served,
        httpx.Client(base_url=served.url, timeout=60) as client,
    ):
        yield client


def post(client: httpx.Client, path: str, **fields: Any) -> Any:
    answer = client.post(path, json={**BASE, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def end_of(client: httpx.Client) -> list[int]:
    answer = client.post("/tokenize", json={"prompt": "</think>", "add_special_tokens": False})
    return answer.json()["tokens"]


def test_the_end_of_the_reasoning_comes_after_so_many_tokens(client):
    chat, end = "/v1/chat/completions", end_of(client)
    free = post(client, chat, **QUESTION)
    answer = post(client, chat, **QUESTION, thinking_token_budget=7, n=2)
    for choice in answer["choices"]:
        assert choice["token_ids"][7 : 7 + len(end)] == end
        assert choice["message"]["reasoning"]
        assert choice["message"]["content"]
    assert answer["choices"][0]["token_ids"][:7] == free["choices"][0]["token_ids"][:7]
    assert free["choices"][0]["token_ids"][7 : 7 + len(end)] != end
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2 * (7 + len(end))
    at_once = post(client, chat, **QUESTION, thinking_token_budget=0)["choices"][0]
    assert (at_once["token_ids"][: len(end)], at_once["message"].get("reasoning")) == (end, None)
    for unlimited in (-1, 60, None):
        assert post(client, chat, **QUESTION, thinking_token_budget=unlimited)["choices"] == free["choices"]
    completion = post(client, "/v1/completions", prompt="Once", thinking_token_budget=5)["choices"][0]
    assert completion["token_ids"][5 : 5 + len(end)] == end


def test_a_schema_holds_behind_the_forced_end(client):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    answer = post(client, "/v1/chat/completions", **QUESTION, response_format=wanted, thinking_token_budget=6)
    (choice,) = answer["choices"]
    assert json.loads(choice["message"]["content"])["a"] in (1, 2)
    end = end_of(client)
    assert choice["token_ids"][6 : 6 + len(end)] == end


@pytest.mark.long
def test_the_end_comes_as_without_a_kill_when_the_master_is_killed(tmp_path):
    body = {**BASE, **QUESTION, "max_tokens": 600, "thinking_token_budget": 250, "n": 2, "stream": True}
    path = "/v1/chat/completions"

    async def play(kill: bool) -> Transcript:
        transcript = Transcript()
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
            reading = asyncio.create_task(stream(client, path, body, transcript))
            while kill and len(transcript.events) < 40 and not reading.done():
                await asyncio.sleep(0.001)
            if kill:
                os.kill(served.master, signal.SIGKILL)
            await reading
        return transcript

    with serve(DEMO, *OPTIONS, "--journal", str(tmp_path)) as served:
        undisturbed, resumed = asyncio.run(play(False)), asyncio.run(play(True))
    assert resumed.num_losses
    assert by_choice(resumed) == by_choice(undisturbed)
    assert sum('"content"' in event and '"reasoning"' not in event for event in resumed.events) > 100


@pytest.mark.long
def test_greedy_tokens_around_the_end_are_those_of_transformers(checkpoint, tmp_path):
    name = "mistral-gqa"
    plain, prompts = make_model(name), make_prompts((33, 40))
    with LLM(with_tokenizer(checkpoint(name), tmp_path), dtype="float32", reasoning_parser="deepseek_r1") as llm:
        sampling = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, thinking_token_budget=5)
        outputs = llm.generate([list(prompt) for prompt in prompts], sampling)
        (echoed,) = llm.generate(["</think>"], SamplingParams(max_tokens=1))
    end = echoed.prompt_token_ids

    def greedy(tokens: list[int], count: int) -> list[int]:
        inputs = torch.tensor([tokens])
        with torch.inference_mode():
            mask = torch.ones_like(inputs)
            found = plain.generate(inputs, attention_mask=mask, max_new_tokens=count, do_sample=False)
        return found[0, len(tokens) :].tolist()

    for prompt, output in zip(prompts, outputs, strict=True):
        first = greedy(list(prompt), 5)
        rest = greedy([*prompt, *first, *end], 19 - len(end))
        assert output.outputs[0].token_ids == [*first, *end, *rest]
