"""The routes that load and unload adapters while the server runs (--enable-runtime-adapters), for one API key."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from orca_contract.model_choices import MAX_NAME_LENGTH
from starlette.exceptions import HTTPException

from orca_master.bodies.adapter_requests import LoadAdapterRequest, UnloadAdapterRequest
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.middleware import owner_of
from orca_master.endpoint.openai_answers import ModelCard
from orca_master.engine.adapter_calls import AdapterLoader
from orca_master.engine.adapter_registry import NAME, OFF
from orca_master.errors import RequestError

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


def add_adapters(app: FastAPI, endpoint: Endpoint) -> None:
    """Add the routes; without the option they answer every request with 404, whatever its body is."""
    if not endpoint.config.runtime_adapters:

        async def off(_: Request) -> Response:
            raise HTTPException(404, OFF)

        for path in (LOAD, UNLOAD):
            app.add_route(path, off, methods=["GET", "POST"], include_in_schema=False)
        return

    def loader() -> AdapterLoader:
        endpoint.check(None, None)
        assert endpoint.adapter_loader is not None, "set where the option is"
        return endpoint.adapter_loader

    @app.post(LOAD, response_model=ModelCard)
    async def load_lora_adapter(body: LoadAdapterRequest, request: Request) -> ModelCard:
        """Load an adapter, which requests of the same API key may then name as their model."""
        owner, load = owner_of(request), loader().load
        if body.lora_name in endpoint.models.numbers(None):  # also those that the engine does not know
            raise RequestError(f"{NAME}: the name {body.lora_name[:MAX_NAME_LENGTH]!a} is taken: choose another", NAME)
        await load(body.lora_name, body.lora_path, owner)
        return endpoint.card(body.lora_name)

    @app.post(UNLOAD)
    async def unload_lora_adapter(body: UnloadAdapterRequest, request: Request) -> dict[str, Any]:
        """Unload an adapter that this API key has loaded; its running requests finish with it."""
        await loader().unload(body.lora_name, owner_of(request))
        return {"id": body.lora_name, "object": "model", "deleted": True}
