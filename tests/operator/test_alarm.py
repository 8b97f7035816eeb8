"""`Alarm`: one call after another to each master that sleeps, until a request comes; and who sets it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from orca_contract.state import StateReport
from orca_operator import alarm
from orca_operator.alarm import Alarm
from orca_operator.master_client import Door, MasterError
from orca_operator.masters import Masters
from support.orcadeployments import context, everything, report

DEMO = context()
DOOR, OTHER = Door("10.0.0.1:8082", "token"), Door("10.0.0.2:8082", "token")
ASLEEP = report(DEMO, pipelines=0)
BUSY = ASLEEP.model_copy(update={"idle": False, "has_backlog": True})
PAUSED = ASLEEP.model_copy(update={"topology": ASLEEP.topology.model_copy(update={"closed": "spec.replicas is 0"})})


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(alarm, "RETRY_SECONDS", 0.001)


class FakeClient:
    """Answers with the given answers, then never."""

    def __init__(self, *answers: StateReport | MasterError) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[Door, float]] = []

    async def state(self, door: Door, wait: float) -> StateReport:
        self.calls.append((door, wait))
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, MasterError):
            raise answer
        return answer


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.001)


def test_the_first_request_is_announced_once_whatever_the_calls_before_answer():
    async def run() -> None:
        client, rings = FakeClient(ASLEEP, MasterError("silence"), ASLEEP, BUSY, BUSY), list[int]()
        made = Alarm(client, lambda: rings.append(1))  # type: ignore[arg-type]
        for _ in range(3):
            made.watch([DOOR])
        await until(lambda: bool(rings))
        await asyncio.sleep(0.05)
        assert (len(client.calls), rings) == (4, [1]), "it asks no more, until it is set again"
        assert set(client.calls) == {(DOOR, alarm.CALL_SECONDS)}
        made.watch([OTHER])
        await until(lambda: len(rings) == 2)
        assert client.calls[-1][0] == OTHER

    asyncio.run(run())


def test_every_master_that_sleeps_is_watched():
    """A request may come to an old revision, while the new one sleeps too."""

    class Answers:
        def __init__(self) -> None:
            self.asked = {DOOR: 0, OTHER: 0}

        async def state(self, door: Door, wait: float) -> StateReport:
            self.asked[door] += 1
            await asyncio.sleep(0)
            return BUSY if door == OTHER and self.asked[DOOR] > 2 else ASLEEP

    async def run() -> None:
        client, rings = Answers(), list[int]()
        made = Alarm(client, lambda: rings.append(1))  # type: ignore[arg-type]
        made.watch([DOOR, OTHER])
        await until(lambda: bool(rings))
        asked = client.asked[DOOR]
        await until(lambda: client.asked[DOOR] > asked + 2)
        made.watch([OTHER])
        await until(lambda: len(rings) > 1)
        asked = client.asked[DOOR]
        await asyncio.sleep(0.02)
        assert client.asked[DOOR] == asked, "it is watched no more"
        made.watch([])

    asyncio.run(run())


def test_a_stopped_alarm_asks_nobody():
    async def run() -> None:
        client = FakeClient()
        made = Alarm(client, lambda: None)  # type: ignore[arg-type]
        made.watch([])
        made.watch([DOOR])
        await until(lambda: bool(client.calls))
        made.watch([])
        await asyncio.sleep(0)
        await until(lambda: len(asyncio.all_tasks()) == 1)
        client.answers.append(BUSY)
        made.watch([DOOR])
        await until(lambda: not client.answers)

    asyncio.run(run())


class FakeExecutor:
    @staticmethod
    def admin_token(_context: Any, _fresh: bool = False) -> str:
        return "token"


class Reporting(FakeClient):
    """Answers a call without a wait with `said`, and the others never."""

    def __init__(self, said: StateReport | MasterError) -> None:
        super().__init__()
        self.said = said

    async def state(self, door: Door, wait: float = 0.0) -> StateReport:
        if not wait:
            self.answers.append(self.said)
        return await super().state(door, wait)


@pytest.mark.parametrize(
    ("said", "watches"),
    [(ASLEEP, True), (report(DEMO), False), (PAUSED, False), (MasterError("no answer"), False)],
    ids=["asleep", "with a pipeline", "it refuses requests", "no answer"],
)  # fmt: skip
def test_only_a_master_that_sleeps_is_watched(said, watches):
    async def run() -> None:
        client = Reporting(ASLEEP)
        made = Masters(client, FakeExecutor(), FakeKeeper(), lambda: None)  # type: ignore[arg-type]
        children = everything(DEMO).children
        await made.observe(DEMO, children, DEMO)
        await until(lambda: len(client.calls) == 2)
        client.said = said
        await made.observe(DEMO, children, DEMO)
        await asyncio.sleep(0.01)
        assert (len(asyncio.all_tasks()) == 2) == watches
        made.alarm.watch([])

    asyncio.run(run())


class FakeKeeper:
    @staticmethod
    def forget(_secret: str) -> None:
        pass
