"""The routes that load and unload adapters, over a loader that only notes its calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from orca_contract.state import EngineState
from orca_master.endpoint.api_keys import digest
from orca_master.endpoint.application import create_app
from orca_master.engine.adapter_registry import ServedAdapter
from orca_master.engine.engine_client import EngineStatus
from orca_master.errors import EngineUnavailableError, RequestError
from support.scripted_engine import END, MODEL, Scripted, ScriptedEngine, make_model

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
BODY = {"lora_name": "x", "lora_path": "sub/x"}


class Engine(ScriptedEngine):
    """Serves `adapters`, in `state`."""

    adapters: tuple[ServedAdapter, ...] = ()
    state = EngineState.SERVING

    @property
    def status(self) -> EngineStatus:
        return replace(super().status, adapters=self.adapters, state=self.state)


class Loader:
    """Changes the engine's adapters at once, or raises `error`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.calls: list[tuple[str, ...]] = []
        self.error: Exception | None = None

    async def load(self, name: str, path: str, owner: str) -> None:
        self._note("load", name, path, owner)
        number = 1 + max((entry.number for entry in self.engine.adapters), default=2)
        self.engine.adapters += (ServedAdapter(name, number, owner),)

    async def unload(self, name: str, owner: str) -> None:
        self._note("unload", name, owner)
        self.engine.adapters = tuple(entry for entry in self.engine.adapters if entry.name != name)

    def _note(self, *call: str) -> None:
        self.calls.append(call)
        if self.error is not None:
            raise self.error


class Server:
    """The application with a loader, and requests to it."""

    def __init__(self, model: Path, enabled: bool = True, **options: Any) -> None:
        made = Scripted(model, f"hi{END}", engine=Engine, adapters=("one", "two"), runtime_adapters=enabled, **options)
        self.engine: Engine = made.engine  # type: ignore[assignment]
        self.loader = Loader(self.engine)
        made.endpoint.adapter_loader = self.loader if enabled else None
        self.made = made
        self.app = create_app(made.endpoint)

    async def post(self, path: str, body: dict[str, Any], key: str = "a") -> httpx.Response:
        return await self._send("POST", path, key, content=json.dumps(body))

    async def names(self, key: str = "a") -> list[str]:
        return [card["id"] for card in (await self._send("GET", "/v1/models", key)).json()["data"]]

    async def get(self, path: str, key: str = "a") -> httpx.Response:
        return await self._send("GET", path, key)

    async def _send(self, method: str, path: str, key: str, **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers, **options)


@pytest.fixture
def play(tmp_path) -> Callable[..., None]:
    model = make_model(tmp_path, "{{ messages | tojson }}")

    def run(scene: Callable[[Server], Awaitable[None]], **options: Any) -> None:
        asyncio.run(scene(Server(model, **options)))  # type: ignore[arg-type]

    return run


def completion(model: str) -> dict[str, Any]:
    return {"model": model, "prompt": "a", "max_tokens": 4}


def test_an_adapter_is_a_model_from_its_loading_to_its_unloading(play):
    async def scene(server: Server) -> None:
        async with server.made.template:
            await loaded_and_unloaded(server)

    async def loaded_and_unloaded(server: Server) -> None:
        assert (await server.post("/v1/completions", completion("x"))).status_code == 404
        loaded = await server.post(LOAD, BODY)
        assert loaded.status_code == 200
        assert (loaded.json()["id"], loaded.json()["parent"]) == ("x", MODEL)
        assert await server.names() == [MODEL, "one", "two", "x"]
        assert (await server.get("/v1/models/x")).json() == loaded.json()
        messages = [{"role": "user", "content": "a"}]
        for path, body in (
            ("/v1/completions", completion("x")),
            ("/v1/chat/completions", {"model": "x", "messages": messages}),
            ("/v1/messages", {"model": "x", "messages": messages, "max_tokens": 4}),
            ("/v1/responses", {"model": "x", "input": "a"}),
        ):
            answer = await server.post(path, body)
            assert (answer.status_code, answer.json()["model"]) == (200, "x"), answer.text
            assert server.engine.submissions[-1].adapter == 3
        assert (await server.post("/tokenize", {"model": "x", "prompt": "a"})).status_code == 200
        unloaded = await server.post(UNLOAD, {"lora_name": "x"})
        assert (unloaded.status_code, unloaded.json()) == (200, {"id": "x", "object": "model", "deleted": True})
        refused = await server.post("/v1/completions", completion("x"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert await server.names() == [MODEL, "one", "two"]
        assert server.loader.calls == [("load", "x", "sub/x", ""), ("unload", "x", "")]

    play(scene)


def test_an_adapter_belongs_to_the_key_that_loads_it(play):
    keys = frozenset({digest("a"), digest("b")})

    async def scene(server: Server) -> None:
        assert (await server.post(LOAD, BODY)).status_code == 200
        assert server.loader.calls == [("load", "x", "sub/x", digest("a"))]
        assert await server.names("a") == [MODEL, "one", "two", "x"]
        assert await server.names("b") == [MODEL, "one", "two"]
        assert (await server.get("/v1/models/x", "b")).status_code == 404
        for path, body in (
            ("/v1/completions", completion("x")),
            ("/tokenize", {"model": "x", "prompt": "a"}),
        ):
            assert (await server.post(path, body, "a")).status_code == 200
            refused = await server.post(path, body, "b")
            assert refused.status_code == 404
            assert "serves 'scripted', 'one', 'two'" in refused.json()["error"]["message"]
        assert (await server.post(LOAD, BODY, "none")).status_code == 401

    play(scene, api_keys=keys)


def test_embeddings_of_an_adapter_are_for_its_key(play):
    async def scene(server: Server) -> None:
        body = {"model": "x", "input": "a"}
        await server.post(LOAD, BODY, "a")
        assert (await server.post("/v1/embeddings", body, "b")).status_code == 404
        assert server.engine.submissions == []
        answer = await server.post("/v1/embeddings", body, "a")
        assert (answer.status_code, answer.json()["model"]) == (200, "x")
        assert [submission.adapter for submission in server.engine.submissions] == [3]
        pair = {"model": "x", "query": "a", "documents": ["b"]}
        assert (await server.post("/v1/rerank", pair, "b")).status_code == 404
        answer = await server.post("/v1/rerank", pair, "a")
        assert (answer.status_code, answer.json()["model"]) == (200, "x")
        assert [submission.adapter for submission in server.engine.submissions] == [3] * 3
        await server.post(UNLOAD, {"lora_name": "x"}, "a")
        assert (await server.post("/v1/embeddings", body, "a")).status_code == 404

    play(scene, api_keys=frozenset({digest("a"), digest("b")}))


@pytest.mark.parametrize("name", [MODEL, "one"])
def test_names_of_the_start_are_taken(play, name):
    async def scene(server: Server) -> None:
        refused = await server.post(LOAD, {**BODY, "lora_name": name})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "lora_name")
        assert "is taken" in refused.json()["error"]["message"]
        assert server.loader.calls == []

    play(scene)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (LOAD, {"lora_name": "x"}, "lora_path"),
        (LOAD, {"lora_path": "x"}, "lora_name"),
        (LOAD, {**BODY, "lora_name": ""}, "lora_name"),
        (LOAD, {**BODY, "lora_name": "a\nb"}, "lora_name"),
        (LOAD, {**BODY, "lora_name": "\ud800"}, "lora_name"),
        (LOAD, {**BODY, "lora_path": "a\0b"}, "lora_path"),
        (LOAD, {**BODY, "lora_path": 3}, "lora_path"),
        (LOAD, {**BODY, "lora_name": "x" * 5000}, "lora_name"),
        (LOAD, {**BODY, "load_inplace": True}, "load_inplace"),
        (UNLOAD, {}, "lora_name"),
        (UNLOAD, {**BODY}, "lora_path"),
    ],
)
def test_a_wrong_body_names_its_field(play, path, body, field):
    async def scene(server: Server) -> None:
        refused = await server.post(path, body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field), refused.text
        assert server.loader.calls == []

    play(scene)


def test_refusals_and_a_state_without_service_reach_the_client(play):
    async def scene(server: Server) -> None:
        server.loader.error = RequestError("lora_path: x: no weights", "lora_path")
        refused = await server.post(LOAD, BODY)
        assert (refused.status_code, refused.json()["error"]["message"]) == (400, "lora_path: x: no weights")
        server.loader.error = EngineUnavailableError("no pipeline serves: load the adapter later")
        assert (await server.post(LOAD, BODY)).status_code == 503
        server.engine.state = EngineState.LOADING
        server.loader.error = None
        assert (await server.post(LOAD, BODY)).status_code == 503
        assert len(server.loader.calls) == 2

    play(scene)


def test_without_the_option_the_routes_say_how_to_switch_them_on(play):
    async def scene(server: Server) -> None:
        for path, body in ((LOAD, BODY), (UNLOAD, {"lora_name": "x"})):
            refused = await server.post(path, body)
            assert refused.status_code == 404
            assert "--enable-runtime-adapters DIR" in refused.json()["error"]["message"]
        schema = (await server.get("/openapi.json")).json()
        names = schema["components"]["schemas"]["CompletionRequest"]["properties"]["model"]
        assert names == {"anyOf": [{"type": "string", "enum": [MODEL, "one", "two"]}, {"type": "null"}]}

    play(scene, enabled=False)


def test_the_schema_has_no_list_of_names_that_change(play):
    """It needs no key."""

    async def scene(server: Server) -> None:
        await server.post(LOAD, BODY)
        schema = (await server.get("/openapi.json")).json()
        names = schema["components"]["schemas"]["CompletionRequest"]["properties"]["model"]
        assert names == {"anyOf": [{"type": "string"}, {"type": "null"}]}

    play(scene)
