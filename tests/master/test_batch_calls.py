"""`BatchCalls`: errors of the routes, which end a request of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from orca_master.batches.batch_run import LineAnswer
from orca_master.endpoint.batch_calls import BatchCalls
from starlette.types import Receive, Scope, Send
from support.adapter_restorer import NO_ADAPTERS
from support.scripted_engine import END, Scripted, make_model


@pytest.fixture
def call(tmp_path, monkeypatch) -> Callable[[int | None], LineAnswer]:
    """Return a function that sends a request to a route, whose response with this status breaks off."""
    endpoint = Scripted(make_model(tmp_path, "{{ messages | tojson }}"), END).endpoint

    def call(status: int | None) -> LineAnswer:
        async def route(scope: Scope, receive: Receive, send: Send) -> None:
            if status is not None:
                await send({"type": "http.response.start", "status": status, "headers": []})
                await send({"type": "http.response.body", "body": b'{"error": {}}'})
            raise ValueError("unexpected")

        monkeypatch.setattr("orca_master.endpoint.batch_calls.create_generating_app", lambda _: route)
        return asyncio.run(BatchCalls(endpoint, NO_ADAPTERS, 8).call("", "/v1/completions", b"{}"))

    return call


@pytest.mark.parametrize("status", [None, 200, 503])
def test_a_response_that_breaks_off_is_no_answer(call, status):
    with pytest.raises(ValueError, match="unexpected"):
        call(status)


def test_an_internal_error_is_an_answer_and_the_log_names_the_route(call, caplog):
    answer = call(500)
    assert (answer.status, answer.body) == (500, b'{"error": {}}')
    assert "a request of a batch to /v1/completions failed" in caplog.text
