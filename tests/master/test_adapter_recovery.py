"""Adapters and pipelines that are formed again: no adapter prevents it, and none stays in memory without a use."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest
from orca_master.engine import live_requests
from orca_master.engine import supervisor as supervisor_module
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.messages import Choices
from orca_master.errors import ConfigurationError
from support.adapted_engine import both_serve, on_workers, served, set_hanging, submit, two
from support.fake_engine import Engine, play
from support.fake_workers import FakeWorkers

KILLED = WorkerLostError("worker b:0: killed")
CUT_OFF = WorkerLostError("worker b:0: no route", outside=True)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RETRY_SECONDS", 0.001)


async def form_again(made: Engine, errors: Sequence[dict[str, Exception]]) -> None:
    """Lose pipeline b, whose next formations meet `errors` of adapters by path, and wait until it serves."""
    waiting = list(errors)

    def fail(workers: FakeWorkers) -> None:
        workers.adapter_errors = waiting.pop(0) if waiting else {}

    made.cluster.on_made = fail
    count = len(made.cluster.formed["b"]) + len(errors)
    made.cluster.newest("b").lose(KILLED)
    await made.until(lambda: len(made.cluster.formed["b"]) > count and len(made.engine._pipelines.serving) == 2)


def test_an_adapter_over_which_workers_die_twice_is_unloaded_everywhere():
    async def scene(made: Engine) -> None:
        await both_serve(made, "x", "y")
        set_hanging(made, True)
        made.cluster.hang = True
        submit(made, "r", 1, 8)
        await form_again(made, [{"/d/x": KILLED}] * 2)
        lost = "the adapter 'x' could not be loaded again after a loss of workers: worker b:0: killed"
        assert await made.ended("r") == lost
        assert served(made) == [("y", 2, "")]
        await made.until(lambda: on_workers(made) == [{2: "/d/y"}] * 2)

    play(two, scene)


@pytest.mark.parametrize("errors", [[KILLED], [CUT_OFF] * 4, [CUT_OFF, KILLED, CUT_OFF]])
def test_an_adapter_stays_that_is_not_to_blame(errors):
    async def scene(made: Engine) -> None:
        await both_serve(made, "x")
        for _ in range(2):  # what counts is losses in a row
            await form_again(made, [{"/d/x": error} for error in errors])
            assert on_workers(made) == [{1: "/d/x"}] * 2
        assert served(made) == [("x", 1, "")]

    play(two, scene)


def test_losses_over_different_adapters_blame_none():
    async def scene(made: Engine) -> None:
        await both_serve(made, "x", "y")
        await form_again(made, [{"/d/x": KILLED}, {"/d/y": KILLED}])
        assert on_workers(made) == [{1: "/d/x", 2: "/d/y"}] * 2

    play(two, scene)


def test_an_adapter_that_one_pipeline_refuses_leaves_the_memory_of_the_others():
    async def scene(made: Engine) -> None:
        await both_serve(made, "x", "y")
        made.cluster.newest("b").lose(KILLED)
        made.cluster.adapter_errors["/d/x"] = ConfigurationError("x: the files have changed")
        await made.until(lambda: on_workers(made) == [{2: "/d/y"}] * 2)

    play(two, scene)


def test_a_load_that_is_cancelled_leaves_nothing_in_the_pipelines_that_were_faster():
    async def scene(made: Engine) -> None:
        await both_serve(made)
        made.cluster.newest("b").adapter_gate = asyncio.Event()
        loading = asyncio.create_task(made.engine.adapters.load("x", "x", ""))
        await made.until(lambda: on_workers(made)[0] == {1: "/d/x"})
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        await made.until(lambda: on_workers(made) == [{}, {}])

    play(two, scene)


@pytest.mark.parametrize("end", ["cancel", "overdue"])
def test_an_adapter_leaves_an_idle_server_with_the_choice_that_used_it_last(monkeypatch, end):
    if end == "overdue":
        monkeypatch.setattr(live_requests, "CHOICES_SECONDS", 0.01)

    async def scene(made: Engine) -> None:
        await both_serve(made, "x")
        choice = dataclasses.replace(made.submission("r", (5, 6), 4), adapter=1, choices=Choices("g", 2, 12))
        made.engine.submit(choice)
        await made.engine.adapters.unload("x", "")
        assert made.engine.adapters.registry.leaving == {1}
        if end == "cancel":
            made.engine.cancel("r")
        await made.until(lambda: on_workers(made) == [{}, {}])

    play(two, scene)


def test_every_adapter_of_a_formation_is_progress_but_none_twice():
    """Else a formation that fails at its last adapter again and again would let requests wait for ever."""

    async def scene(made: Engine) -> None:
        await both_serve(made, "x", "y", "z")
        assert made.engine.adapters._on_progress == made.engine.on_progress
        brought: list[int] = []
        note = lambda: brought.append(len(made.cluster.newest("b").adapters))  # noqa: E731
        made.engine.adapters._on_progress = note
        await form_again(made, [])
        assert brought == [1, 2, 3]
        await form_again(made, [{"/d/z": CUT_OFF}] * 2)
        assert brought == [1, 2, 3] * 2
        await form_again(made, [])
        assert brought == [1, 2, 3] * 3

    play(two, scene)
