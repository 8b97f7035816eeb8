"""The generated reference pages agree with the code, and the pages written by hand name every route and field."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from orca import LLM
from orca_contract.reasons import Reason
from orca_master.bodies.adapter_requests import LoadAdapterRequest, UnloadAdapterRequest
from orca_master.bodies.batch_requests import BatchRequest
from orca_master.bodies.embedding_requests import EmbeddingRequest
from orca_master.bodies.messages_requests import CountTokensRequest, MessagesRequest
from orca_master.bodies.openai_requests import ChatCompletionRequest, CompletionRequest
from orca_master.bodies.response_requests import ResponseRequest
from orca_master.bodies.score_requests import (
    RerankRequest,
    ScoreDocumentsRequest,
    ScoreItemsRequest,
    ScoreTextsRequest,
)
from orca_master.bodies.tokenize_requests import DetokenizeRequest, TokenizeChatRequest, TokenizeTextRequest
from orca_master.commands.offline_config import TYPES
from orca_master.endpoint.application import create_app
from orca_master.endpoint.config import EndpointConfig
from orca_master.engine.engine_client import EngineClient
from pydantic import BaseModel

ROOT = Path(__file__).parents[2]
HTTP_PAGE = ROOT / "docs" / "reference" / "http.md"
BODIES: dict[str, list[type[BaseModel]]] = {
    "both generating routes of OpenAI's API": [CompletionRequest, ChatCompletionRequest],
    "`/v1/messages`": [MessagesRequest, CountTokensRequest],
    "`/v1/responses`": [ResponseRequest],
    "`/v1/embeddings`": [EmbeddingRequest],
    "`/v1/score` and `/v1/rerank`": [ScoreTextsRequest, ScoreDocumentsRequest, ScoreItemsRequest, RerankRequest],
    "`/v1/batches`": [BatchRequest],
    "`/tokenize` and `/detokenize`": [TokenizeTextRequest, TokenizeChatRequest, DetokenizeRequest],
    "`/v1/load_lora_adapter`": [LoadAdapterRequest, UnloadAdapterRequest],
}
"""Bodies by the heading of their fields."""


def application() -> FastAPI:
    """Return an application with every route."""
    config = EndpointConfig(model_names=("model",), runtime_adapters=True)
    return create_app(SimpleNamespace(config=config, resumable=SimpleNamespace(), engine=EngineClient))  # type: ignore


def test_options_and_metrics_agree_with_the_code():
    """docs/api.md, the reference of the OrcaDeployment, has its test in tests/operator/test_crd.py."""
    script = str(ROOT / "tools" / "reference_pages.py")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def documented_fields(heading: str) -> set[str]:
    """Return the fields in the first column of a section's tables."""
    section = HTTP_PAGE.read_text().partition(f"\n## Fields of {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", " ".join(cells)))


@pytest.mark.parametrize("body", [body for bodies in BODIES.values() for body in bodies])
def test_every_field_of_a_request_is_documented(body):
    (heading,) = [heading for heading, bodies in BODIES.items() if body in bodies]
    assert set(body.model_fields) <= documented_fields(heading)


@pytest.mark.parametrize("heading", BODIES)
def test_every_documented_field_exists(heading):
    assert documented_fields(heading) <= {name for body in BODIES[heading] for name in body.model_fields}


def test_every_status_is_documented():
    """Those of the routes' error bodies, and 500."""
    table = HTTP_PAGE.read_text().partition("## Status codes")[2].partition("\n## ")[0]
    documented = set(re.findall(r"\d{3}", " ".join(re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE))))
    answered = {str(status) for route in application().routes for status in getattr(route, "responses", {})}
    assert {status for status in answered if status >= "400"} | {"500"} <= documented


def test_every_route_is_documented():
    app = application()
    offered = {
        f"{method} {route.path.partition(':')[0].replace('}', '')}" for route in app.routes for method in route.methods
    }
    schema = {f"{method} {path}" for method in ("GET", "HEAD") for path in ("/docs", "/openapi.json")}
    table = HTTP_PAGE.read_text().partition("## Routes")[2].partition("\n## ")[0]
    documented = set(re.findall(r"(?:GET|POST|DELETE) /[\w/{]*", table.replace("}", "")))
    assert documented == offered - schema


def test_every_reason_has_a_check():
    """docs/how-to/not-ready.md says for each reason of `Ready` what to do."""
    page = (ROOT / "docs" / "how-to" / "not-ready.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, re.MULTILINE)
    checked = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert checked == {reason.value for reason in Reason if reason is not Reason.SERVING}


def test_every_parameter_of_llm_is_documented():
    table = (ROOT / "docs" / "how-to" / "python.md").read_text().partition("## Options")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    parameters = set(inspect.signature(LLM).parameters) - {"model", "engine"}
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == parameters | set(TYPES)


def test_named_metrics_exist():
    """On all pages; vLLM's metrics that a page calls absent are excepted."""
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    names = r"\b(?:(?:orca|vllm):|orca_operator_)[a-z]\w+"
    known = set(re.findall(names, reference)) | {"vllm:lora_requests_info"}
    for page in (ROOT / "docs").rglob("*.md"):
        used = {re.sub(r"_(?:bucket|sum|count)$", "", name) for name in re.findall(names, page.read_text())}
        assert used - known == set(), page
