"""Bodies on their way are bounded together, in memory and in time, not only one by one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from orca_master.bodies.body_budget import BodyBudget
from orca_master.bodies.body_checker import SMALL_BYTES, BodyChecker
from orca_master.bodies.bounded_turns import Caller
from orca_master.bodies.lengths import Lengths
from orca_master.bodies.tokenize_requests import DetokenizeRequest
from orca_master.endpoint import body_limits, checked_route
from orca_master.endpoint.body_limits import BodyLimits
from orca_master.errors import QueueFullError
from orca_protos.http_limits import HttpLimits
from starlette.exceptions import HTTPException

JSON = [(b"content-type", b"application/json")]
SOUND = b'{"tokens": [1]}'


def scope(**others: Any) -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": "/detokenize", "query_string": b"", "headers": JSON, **others}


def application(limits: HttpLimits, bodies: Any = None) -> FastAPI:
    app = FastAPI()
    config = SimpleNamespace(http=limits)
    fields = {"bodies": bodies or BodyChecker(), "lengths": Lengths(100), "with_defaults": lambda body: body}
    endpoint: Any = SimpleNamespace(config=config, caller=Caller, **fields)
    app.router.route_class = checked_route.checked_route(endpoint)

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> int:
        return len(body.tokens)

    return app


class Client:
    """A request whose body comes as `pieces`; then the client waits."""

    def __init__(self, app: Any, *pieces: dict[str, Any]) -> None:
        self._pieces = list(pieces)
        self.waits = asyncio.Event()
        self.sent: list[Any] = []
        self.task = asyncio.create_task(app(scope(), self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._pieces:
            self.waits.set()
            await asyncio.Event().wait()
        return self._pieces.pop(0)

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def status(self) -> int:
        async with asyncio.timeout(60):
            await self.task
        return int(self.sent[0]["status"])


def piece(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_bodies_share_a_budget(monkeypatch):
    """Unfinished bodies leave no room for others until they end; a checked body takes none."""
    monkeypatch.setattr(checked_route, "MAX_BYTES", 100)

    async def run():
        app = application(HttpLimits(max_body_bytes=50))
        assert [await Client(app, piece(SOUND)).status() for _ in range(20)] == [200] * 20
        unfinished = [Client(app, piece(b" " * 45, more=True)) for _ in range(2)]
        for client in unfinished:
            await client.waits.wait()
        with pytest.raises(QueueFullError, match="100 bytes"):
            await Client(app, piece(SOUND)).status()
        unfinished[0].task.cancel()
        await asyncio.gather(unfinished[0].task, return_exceptions=True)
        assert await Client(app, piece(SOUND)).status() == 200
        unfinished[1].task.cancel()
        await asyncio.gather(unfinished[1].task, return_exceptions=True)

    asyncio.run(run())


def test_bodies_of_one_key_leave_half_of_the_budget_to_others():
    """Without keys all bodies share the whole; one body of the largest size always fits."""
    budget = BodyBudget(100, 60)
    with budget.body("a") as take, budget.body("a") as take_second, budget.body("b") as take_other:
        take(45)
        take_second(15)
        with pytest.raises(QueueFullError, match="60 bytes for all request bodies of an API key"):
            take_second(1)
        take_other(40)
        with pytest.raises(QueueFullError, match="100 bytes for all request bodies is"):
            take_other(1)
    with budget.body("") as take, budget.body("a") as take_key:
        take(61)
        take_key(39)
    assert budget.taken == 0


def test_the_check_of_a_body_ends_with_its_client():
    """A client that leaves gives up its place, and the check is cancelled."""

    async def run():
        checking, cancelled = asyncio.Event(), asyncio.Event()

        class Checker:
            async def check(self, *_):
                checking.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()

        app = application(HttpLimits(), Checker())
        client = Client(app, piece(SOUND + b" " * SMALL_BYTES), {"type": "http.disconnect"})
        assert await client.status() == 499
        assert checking.is_set()
        assert cancelled.is_set()

    asyncio.run(run())


def test_one_body_of_the_limit_always_fits(monkeypatch):
    monkeypatch.setattr(checked_route, "MAX_BYTES", 1)

    async def run():
        assert await Client(application(HttpLimits(max_body_bytes=50)), piece(SOUND.ljust(50))).status() == 200

    asyncio.run(run())


def test_a_refused_body_gives_back_what_it_took():
    budget = BodyBudget(10)

    def read(*chunks: int) -> None:
        with budget.body() as take:
            for chunk in chunks:
                take(chunk)

    with pytest.raises(QueueFullError):
        read(8, 3)
    assert budget.taken == 0


def test_a_steady_drip_does_not_prolong_a_body_for_ever(monkeypatch):
    """A client that always earns its pause back is cut all the same."""
    monkeypatch.setattr(body_limits, "MIN_BODY_BYTES_PER_SECOND", 1 << 40)

    async def receive():
        await asyncio.sleep(0.01)
        return piece(b" " * 1024, more=True)

    async def app(_, receive, __):
        while True:
            await receive()

    async def run():
        limits = HttpLimits(body_timeout=0.2, max_body_bytes=1 << 30)
        async with asyncio.timeout(60):
            with pytest.raises(HTTPException, match="too slowly") as error:
                await BodyLimits(app, limits)(scope(), receive, receive)
        assert error.value.status_code == 408

    asyncio.run(run())
