"""Which pipeline gets the next request."""

from __future__ import annotations

from orca_master.engine.config import EngineConfig
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
