"""The generated reference pages agree with the code, and the pages written by hand name every route and field."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from orca_master.bodies.messages_requests import MessagesRequest
from orca_master.bodies.openai_requests import ChatCompletionRequest, CompletionRequest
from orca_master.bodies.response_requests import ResponseRequest
from orca_master.endpoint.application import create_app
from orca_master.endpoint.config import EndpointConfig
from orca_master.engine.engine_client import EngineClient

ROOT = Path(__file__).parents[2]
HTTP_PAGE = ROOT / "docs" / "reference" / "http.md"


def test_options_and_metrics_agree_with_the_code():
    """docs/api.md, the reference of the OrcaDeployment, has its test in tests/operator/test_crd.py."""
    script = str(ROOT / "tools" / "reference_pages.py")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("body", [CompletionRequest, ChatCompletionRequest, MessagesRequest, ResponseRequest])
def test_every_field_of_a_request_is_documented(body):
    rows = set(re.findall(r"`(\w+)`", HTTP_PAGE.read_text()))
    assert set(body.model_fields) <= rows


def test_every_route_is_documented():
    config = EndpointConfig(model_names=("model",), runtime_adapters=True)
    app = create_app(SimpleNamespace(config=config, resumable=SimpleNamespace(), engine=EngineClient))
    offered = {
        f"{method} {route.path.partition(':')[0].replace('}', '')}" for route in app.routes for method in route.methods
    }
    schema = {f"{method} {path}" for method in ("GET", "HEAD") for path in ("/docs", "/docs/oauth2-redirect", "/redoc")}
    schema |= {"GET /openapi.json", "HEAD /openapi.json"}
    table = HTTP_PAGE.read_text().partition("## Routes")[2].partition("\n## ")[0]
    documented = set(re.findall(r"(?:GET|POST|DELETE) /[\w/{]*", table.replace("}", "")))
    assert documented == offered - schema
