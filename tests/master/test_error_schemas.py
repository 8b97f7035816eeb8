"""Errors in the OpenAPI description: each refers to a schema that is there, and costs no time at the start."""

from __future__ import annotations

import itertools
import json

import jsonschema
import pytest
from fastapi import FastAPI
from orca_master.endpoint.application import create_app
from orca_master.endpoint.error_schemas import STATUSES
from orca_master.endpoint.messages_errors import error_body
from orca_master.endpoint.responding import error_response
from support.scripted_engine import Scripted, make_model


@pytest.fixture(scope="module")
def app(tmp_path_factory) -> FastAPI:
    return create_app(Scripted(make_model(tmp_path_factory.mktemp("errors"), ""), "").endpoint)


def schema_of(app: FastAPI, path: str, method: str, status: int) -> dict:
    """Return the schema of a body, with the schemas to which it refers."""
    description = app.openapi()
    content = description["paths"][path][method]["responses"][str(status)]["content"]
    return {**content["application/json"]["schema"], "components": description["components"]}


def test_every_route_names_the_errors_of_its_api(app):
    paths = app.openapi()["paths"]
    assert len(paths) > 20
    for (path, operations), status in itertools.product(paths.items(), STATUSES):
        body = error_body(status, "wrong") if path.startswith("/v1/messages") else error_response(status, "wrong").body
        for method in operations:
            schema = schema_of(app, path, method, status)
            jsonschema.Draft202012Validator(schema).validate(json.loads(body))
            assert schema["$ref"].endswith("MessagesErrorBody") is path.startswith("/v1/messages")


def test_no_serializer_is_compiled_for_errors(app):
    assert [route.path for route in app.routes if getattr(route, "response_fields", None)] == []


def test_bounds_of_counts_are_not_those_of_token_ids(app):
    """A prompt may be cut to more tokens than the vocabulary has."""
    schemas = app.openapi()["components"]["schemas"]
    for body, field in (("CompletionRequest", "truncate_prompt_tokens"), ("CompletionRequest", "min_tokens")):
        schema = {**schemas[body]["properties"][field], "components": {"schemas": schemas}}
        assert jsonschema.Draft202012Validator(schema).is_valid(5000), field
    tokens = schemas["DetokenizeRequest"]["properties"]["tokens"]["items"]
    assert tokens["maximum"] == 999, "the vocabulary has 1000 tokens"


def test_the_names_of_schemas_are_those_of_clients_made_from_them(app):
    names = app.openapi()["components"]["schemas"]
    assert "StructuredOutputs" in names
    assert [name for name in names if name.startswith("_")] == []
