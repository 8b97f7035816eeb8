"""Which pipeline gets the next request."""

from __future__ import annotations

import asyncio
import time

import pytest
from orca_master.engine.config import EngineConfig
from orca_master.engine.faults import WorkerLostError
from orca_master.scheduling.batch import Batch
from support.fake_engine import Engine, play, topology
from support.fake_workers import continuation

PREFIX = tuple(range(1, 41))


def test_of_idle_pipelines_the_one_with_the_prefix_gets_the_request():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        for number in range(6):
            prompt = (*PREFIX, 50 + number)
            made.submit(str(number), prompt, 3)
            assert await made.collect(1) == {str(number): continuation(prompt, 3)}
        admissions = [
            (batch.pipeline, entry) for _, batch in made.batches for entry in batch.requests if entry.admitted
        ]
        assert len({pipeline for pipeline, _ in admissions}) == 1
        assert [entry.context_length for _, entry in admissions] == [0, 32, 32, 32, 32, 32]
        made.submit("other", (500, 501), 3)
        assert await made.collect(1) == {"other": continuation((500, 501), 3)}

    play(lambda: Engine(topology("a", "b")), scene)


def test_a_request_does_not_wait_for_the_pipeline_with_its_prefix():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.submit("first", PREFIX, 1)
        await made.collect(1)
        (first,) = (batch.pipeline for _, batch in made.batches)
        made.cluster.newest(first).hangs = True
        made.submit("hangs", PREFIX, 1)
        made.submit("second", PREFIX, 1)
        assert await made.collect(1) == {"second": continuation(PREFIX, 1)}
        made.cluster.newest(first).hangs = False
        assert await made.collect(1) == {"hangs": continuation(PREFIX, 1)}

    play(lambda: Engine(topology("a", "b"), EngineConfig(max_batch_size=1)), scene)


def test_an_arrival_notes_what_the_pipelines_have_of_its_prompt():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.submit("first", PREFIX, 1)
        await made.collect(1)
        made.submit("second", (*PREFIX, 7), 1)
        (request,) = made.engine._requests
        assert request.num_expected_cached == 32
        await made.collect(1)

    play(lambda: Engine(topology("a")), scene)


def note_iterations(made: Engine, seconds: float) -> None:
    """Let the engine expect that an iteration takes so many seconds, those with prompts slightly more."""
    expected, now = made.engine._admission.expected_wait, time.monotonic()
    for name in made.engine._pipelines.serving:
        expected.note_sent(Batch(name, ()), now - seconds)
        expected.note_returned(Batch(name, ()), now)
    expected._costs.note(seconds + 0.01, 10, 1, limited=False)


async def hold_first_iteration(made: Engine, seconds: float) -> None:
    """Start, expect iterations of so many seconds, and submit a request whose first iteration does not return."""
    made.cluster.hang = True
    await made.engine.start()
    note_iterations(made, seconds)
    made.submit("first", PREFIX, 5)


def test_who_arrives_before_the_next_iteration_is_sent_ahead_joins_it():
    async def scene(made: Engine) -> None:
        await hold_first_iteration(made, 3600)
        made.submit("second", (500, 501), 5)
        assert len(made.batches) == 1
        made.cluster.newest("a").hangs = False
        assert await made.collect(2) == {"first": continuation(PREFIX, 5), "second": continuation((500, 501), 5)}
        assert [entry.admitted for entry in made.batches[1][1].requests] == [False, True]

    play(lambda: Engine(topology("a")), scene)


@pytest.mark.parametrize(
    ("seconds", "config"),
    [
        pytest.param(0.1, EngineConfig(), id="when-its-time-comes"),
        pytest.param(3600, EngineConfig(max_batch_size=1), id="at-once-where-nobody-can-join"),
        pytest.param(0.003, EngineConfig(), id="at-once-where-iterations-are-short"),
    ],
)
def test_the_next_iteration_is_sent_ahead(seconds, config):
    async def scene(made: Engine) -> None:
        await hold_first_iteration(made, seconds)
        await made.until(lambda: len(made.batches) == 2)
        made.cluster.newest("a").hangs = False
        assert await made.collect(1) == {"first": continuation(PREFIX, 5)}

    play(lambda: Engine(topology("a"), config), scene)


def test_each_pipeline_has_its_own_time_to_be_ahead():
    async def scene(made: Engine) -> None:
        await hold_first_iteration(made, 0.1)
        made.submit("second", (500, 501), 5)
        await made.until(lambda: sorted(batch.pipeline for _, batch in made.batches) == ["a", "a", "b", "b"])
        for name in "ab":
            made.cluster.newest(name).hangs = False
        assert await made.collect(2) == {"first": continuation(PREFIX, 5), "second": continuation((500, 501), 5)}

    play(lambda: Engine(topology("a", "b")), scene)


def test_a_lost_pipeline_has_no_time_to_be_ahead():
    async def scene(made: Engine) -> None:
        await hold_first_iteration(made, 0.1)
        made.submit("second", (500, 501), 5)
        made.cluster.newest("a").lose(WorkerLostError("the test wants it"))
        await made.until(lambda: list(made.engine._pipelines.serving) == ["b"])
        await asyncio.sleep(0.2)  # the time at which it would have been ahead
        made.cluster.newest("b").hangs = False
        assert await made.collect(2) == {"first": continuation(PREFIX, 5), "second": continuation((500, 501), 5)}
        assert [batch.pipeline for _, batch in made.batches].count("a") == 1

    play(lambda: Engine(topology("a", "b")), scene)
