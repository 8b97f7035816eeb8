"""Adapters of an API process over the link: the process knows a change when it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from orca_master.api_processes.link_server import EngineServer
from orca_master.api_processes.remote_adapters import RemoteAdapters
from orca_master.api_processes.remote_engine import RemoteEngine, connect
from orca_master.endpoint.config import EndpointConfig
from orca_master.engine.adapter_calls import AdapterLoader
from orca_master.engine.adapter_registry import ServedAdapter
from orca_master.errors import ADAPTER_LIMIT, EngineUnavailableError, RequestError
from support.queue_client import Queue

CONFIG = EndpointConfig(("m",), runtime_adapters=True)


class Loader:
    """Changes the status of `engine`, or raises `error`."""

    def __init__(self, engine: SimpleNamespace) -> None:
        self.engine = engine
        self.error: BaseException | None = None

    async def load(self, name: str, path: str, owner: str) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.engine.status = replace(self.engine.status, adapters=(ServedAdapter(f"{name} of {path}", 5, owner),))

    async def unload(self, name: str, owner: str) -> None:
        self.engine.status = replace(self.engine.status, adapters=())


def play(folder: Path, scene: Callable[[RemoteEngine, Loader], Awaitable[None]], enabled: bool = True) -> None:
    async def run() -> None:
        engine = SimpleNamespace(status=Queue().status)
        loader = Loader(engine)
        allowed: AdapterLoader | None = loader if enabled else None
        async with asyncio.timeout(60):
            server = EngineServer(engine, Path("/m"), CONFIG, allowed)  # type: ignore[arg-type]
            async with server.listening(folder / "socket"):
                remote, hello = await connect(folder / "socket")
                assert hello.config == CONFIG
                listening = asyncio.create_task(remote.listen())
                await scene(remote, loader)
            await listening

    asyncio.run(run())


def test_the_status_comes_before_the_answer(tmp_path):
    async def scene(remote: RemoteEngine, _: Loader) -> None:
        adapters = RemoteAdapters(remote)
        await adapters.load("x", "sub/x", "key")
        assert remote.status.adapters == (ServedAdapter("x of sub/x", 5, "key"),)
        await adapters.unload("x", "key")
        assert remote.status.adapters == ()

    play(tmp_path, scene)


def test_refusals_keep_their_kind_and_field(tmp_path):
    async def scene(remote: RemoteEngine, loader: Loader) -> None:
        loader.error = RequestError("lora_name: 64 are loaded", "lora_name", ADAPTER_LIMIT)
        with pytest.raises(RequestError, match="lora_name: 64") as refused:
            await RemoteAdapters(remote).load("x", "y", "")
        assert (refused.value.field, refused.value.code) == ("lora_name", ADAPTER_LIMIT)
        loader.error = EngineUnavailableError("later")
        with pytest.raises(EngineUnavailableError, match="later"):
            await RemoteAdapters(remote).load("x", "y", "")

    play(tmp_path, scene)


def test_a_change_that_ends_with_the_engine_is_answered(tmp_path):
    """The engine's loop cancels what it has not finished."""

    async def scene(remote: RemoteEngine, loader: Loader) -> None:
        loader.error = asyncio.CancelledError()
        with pytest.raises(EngineUnavailableError, match="the engine stops"):
            await RemoteAdapters(remote).load("x", "y", "")

    play(tmp_path, scene)


def test_a_master_without_the_option_refuses_a_process_that_asks_nevertheless(tmp_path):
    async def scene(remote: RemoteEngine, _: Loader) -> None:
        with pytest.raises(RequestError, match="start it with --enable-runtime-adapters"):
            await RemoteAdapters(remote).load("x", "y", "")

    play(tmp_path, scene, enabled=False)
