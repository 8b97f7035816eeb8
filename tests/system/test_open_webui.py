"""The requests of Open WebUI (open_webui.yaml) are answered: the list of models, chats, functions and tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml
from support.checkpoints import with_tokenizer
from support.served import Served, serve

pytestmark = pytest.mark.long

NAME = "llama-head80-untied"
REQUESTS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("open_webui.yaml").read_text())


@pytest.fixture(scope="module")
def served(checkpoint, tmp_path_factory) -> Iterator[Served]:
    model = with_tokenizer(checkpoint(NAME), tmp_path_factory.mktemp("open-webui"))
    with serve(model, "--served-model-name", NAME, "--tool-call-parser", "hermes") as server:
        yield server


@pytest.fixture(scope="module")
def client(served) -> openai.OpenAI:
    headers = {"default_headers": REQUESTS["headers"]}
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60, **headers)


def test_the_list_of_models_has_the_served_one(served):
    answer = httpx.get(f"{served.url}/v1/models", headers=REQUESTS["headers"])
    assert [model["id"] for model in answer.json()["data"]] == [NAME]


@pytest.mark.parametrize("title", REQUESTS["streams"])
def test_a_stream(client, title):
    body = REQUESTS["streams"][title]
    first, *others = client.chat.completions.create(model=NAME, messages=[], stream=True, extra_body=body)
    assert first.choices[0].delta.role == "assistant"
    assert [choice.finish_reason for chunk in others for choice in chunk.choices][-1] in ("stop", "length")
    assert (others[-1].usage is not None) is ("stream_options" in body)


@pytest.mark.parametrize("title", REQUESTS["tasks"])
def test_a_task(client, title):
    answer = client.chat.completions.create(model=NAME, messages=[], extra_body=REQUESTS["tasks"][title])
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens > 0


def test_a_continued_answer_is_the_rest_of_the_prompt(client):
    """The same tokens as a completion of the rendered messages, without what the template writes after a message."""
    body = {**REQUESTS["streams"]["an answer that is continued"], "temperature": 0}
    chat = client.chat.completions.create(model=NAME, messages=[], extra_body=body)
    prompt = "user: Hi\nassistant: Once upon"
    text = client.completions.create(model=NAME, prompt=prompt, max_tokens=body["max_tokens"], temperature=0)
    assert chat.choices[0].message.content == text.choices[0].text
    assert chat.usage.prompt_tokens == text.usage.prompt_tokens
