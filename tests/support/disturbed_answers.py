"""Scenes of an engine in which limited answers have the tokens of undisturbed ones: whatever disturbs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from orca_contract.reasons import Reason
from orca_master.engine.config import EngineConfig
from orca_master.engine.faults import WorkerLostError

from support.fake_engine import Engine, play, topology
from support.fake_workers import continuation

KILLED = WorkerLostError("worker a:1: killed", Reason.WORKER_OOM_KILLED, "a:1")
Answers = Mapping[str, list[int]]
"""The tokens of undisturbed answers, by name."""


class Submit(Protocol):
    def __call__(self, made: Engine, name: str, of: str, /) -> None:
        """Submit a request for the answer `of`, under a name."""


class Resume(Protocol):
    def __call__(self, made: Engine, name: str, of: str, generated: list[int], /) -> None:
        """Submit a request for the rest of the answer `of`, which begins with `generated`, under a name."""


async def assert_the_same_beside_others(made: Engine, answers: Answers, submit: Submit, num_submitted: int = 0) -> None:
    """Generate the answers on a started engine, beside three without limits, and `num_submitted` further requests."""
    for number in range(3):
        made.submit(str(number), (number + 1,), 30)
    for name in answers:
        submit(made, name, name)
    tokens = await made.collect(num_submitted + 3 + len(answers))
    assert {name: tokens[name] for name in answers} == answers
    assert all(tokens[str(number)] == continuation((number + 1,), 30) for number in range(3))
    made.assert_nothing_held()


def assert_the_same_after_a_lost_pipeline(answers: Answers, submit: Submit) -> None:
    async def scene(made: Engine) -> None:
        await made.engine.start()
        for name in answers:
            submit(made, name, name)
        await made.until(lambda: made.engine.snapshot.num_iterations > 8)
        made.cluster.newest("a").lose(KILLED)
        assert await made.collect(len(answers)) == answers

    play(lambda: Engine(topology("a", "b"), num_blocks=64), scene)


def assert_the_same_after_preemptions(answers: Answers, submit: Submit, of: str) -> None:
    """Generate an answer six times at once, with K/V blocks for fewer."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        for number in range(6):
            submit(made, str(number), of)
        assert await made.collect(6) == dict.fromkeys(map(str, range(6)), answers[of])
        assert made.preemptions > 0

    play(lambda: Engine(topology("a"), EngineConfig(admission="paged"), num_blocks=5), scene)


def assert_the_same_when_resumed(answers: Answers, resume: Resume, of: str, sizes: Iterable[int]) -> None:
    """Generate the rest of an answer after so many of its tokens."""
    rests = {str(size): answers[of][size:] for size in sizes}

    async def scene(made: Engine) -> None:
        await made.engine.start()
        for name, rest in rests.items():
            resume(made, name, of, answers[of][: -len(rest)])
        assert await made.collect(len(rests)) == rests

    play(lambda: Engine(topology("a")), scene)
