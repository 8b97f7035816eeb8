"""`EngineThread`: the order of calls, its end while the engine's loop is stuck, the drain known to both threads."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Sequence
from typing import cast

import pytest
from orca_contract.topology import ModelSpec, PipelineSpec, Topology
from orca_master.engine import engine_thread
from orca_master.engine.config import EngineConfig
from orca_master.engine.engine_thread import EngineThread
from orca_master.engine.messages import Choices, Output, Submission
from orca_master.metrics.prometheus import Metrics
from orca_master.scheduling.constraint import Grammar, GrammarKind
from orca_master.scheduling.request import FinishReason, ServiceClass
from orca_master.scheduling.sampling_parameters import SamplingParameters
from orca_master.text.grammar_compiler import GrammarCompiler
from orca_master.text.token_matcher import TokenMatcher
from orca_protos import engine_pb2 as pb


def make_engine(starts: bool = True) -> EngineThread:
    """Return an engine without workers, whose thread runs if it `starts`."""
    pipelines = [PipelineSpec(id="a", workers=["unix:/nowhere"])]
    topology = Topology(model=ModelSpec(path="m", served_name="m"), pipelines=pipelines)
    metrics = Metrics("m")
    engine = EngineThread(topology, EngineConfig(), metrics, metrics)
    if starts:
        engine._thread.start()
    return engine


@pytest.mark.parametrize(("policy", "bound"), [("fcfs", 7.0), ("priority", math.inf)])
def test_the_bound_of_the_expected_wait_holds_for_every_new_request_unless_one_can_come_before_others(policy, bound):
    async def play() -> None:
        engine = make_engine(starts=False)
        engine.config = EngineConfig(max_expected_wait=7.0, scheduling_policy=policy)
        assert engine.status.max_expected_wait == bound

    asyncio.run(play())


@pytest.mark.parametrize(("stall_timeout", "bound"), [(None, 65.0), (5.0, 65.0), (900.0, 900.0)])
def test_the_bound_of_a_stall_is_that_of_the_iterations_at_least(stall_timeout, bound):
    """A change of adapters adds to a fixed bound, too."""

    async def play() -> None:
        engine = make_engine(starts=False)
        engine.config = EngineConfig(stall_timeout=stall_timeout)
        engine.engine.snapshot = engine.engine.snapshot._replace(stall_seconds=65.0)
        assert engine.status.progress.stall_timeout == bound

    asyncio.run(play())


def test_an_engine_that_has_not_started_yet_is_alive():
    """Its master waits for an earlier one, and the liveness probe must not end it."""

    async def play() -> None:
        engine = make_engine(starts=False)
        assert await engine.alive()
        engine._thread.start()
        assert await engine.alive()
        await engine.stop("the test ends")
        assert not await engine.alive()

    asyncio.run(play())


def test_a_drain_reaches_the_endpoint_at_once_and_the_engine_on_its_thread():
    async def play() -> None:
        engine, threads, known = make_engine(), [], threading.Event()

        def begin_drain() -> None:
            threads.append(threading.current_thread().name)
            known.set()

        engine.engine.begin_drain = begin_drain
        assert not engine.status.draining
        engine.begin_drain()
        assert engine.status.draining
        assert await asyncio.to_thread(known.wait, 60)
        assert threads == ["engine-master"]
        await engine.stop("the test ends")

    asyncio.run(play())


def test_the_end_of_a_server_does_not_wait_for_a_stuck_engine(monkeypatch, caplog):
    monkeypatch.setattr(engine_thread, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(engine_thread, "JOIN_SECONDS", 0.1)
    stuck, go = threading.Event(), threading.Event()

    def block() -> None:
        stuck.set()
        go.wait(120)

    engines = []

    async def play() -> None:
        engines.append(engine := make_engine())
        engine._engine_loop.call_soon_threadsafe(block)
        await asyncio.to_thread(stuck.wait, 60)
        async with asyncio.timeout(60):
            await engine.stop("the test ends")

    try:
        asyncio.run(play())
    finally:
        go.set()
    assert "did not stop" in caplog.text
    engines[0]._thread.join(60)
    assert not asyncio.all_tasks(engines[0]._engine_loop), "a coroutine was never awaited"


def test_an_engine_that_was_not_started_stops_at_once():
    """As after an error between its creation and its start."""

    async def play() -> None:
        engine = make_engine(starts=False)
        async with asyncio.timeout(engine_thread.STOP_SECONDS / 2):
            await engine.stop("the test ends")

    asyncio.run(play())


@pytest.mark.parametrize("choices", [None, Choices("group", 2, 10)], ids=["alone", "one of two choices"])
def test_a_request_that_is_released_at_once_leaves_nothing_in_the_engine(choices):
    """As by an API process that submits and releases in one message, or whose link closes."""

    async def play() -> None:
        engine = make_engine()
        go = threading.Event()
        engine._engine_loop.call_soon_threadsafe(go.wait, 60)  # both calls then reach the engine in one step
        submission = Submission("a", (1,), 4, SamplingParameters(), frozenset(), choices=choices)
        accepted = engine.submit(submission, lambda output: None)
        engine.release("a", "abort")
        go.set()
        await accepted
        await engine.on_engine(lambda: asyncio.sleep(0))
        assert engine.idle
        assert not len(engine.engine.pool), "the request waits in the queue for nobody"
        engine.engine.pool.reserve(engine.config.max_queued_requests, 0)  # no place is still reserved
        await engine.stop("the test ends")

    asyncio.run(play())


def test_a_submission_that_is_cancelled_before_the_engine_sees_it_is_dropped():
    """As by a client that leaves, and by a deadline."""

    async def play() -> None:
        engine = make_engine()
        go = threading.Event()
        engine._engine_loop.call_soon_threadsafe(go.wait, 60)
        submission = Submission("a", (1,), 4, SamplingParameters(), frozenset())
        accepted = asyncio.ensure_future(engine.submit(submission, lambda output: None))
        accepted.cancel()
        await asyncio.sleep(0)
        go.set()
        await engine.on_engine(lambda: asyncio.sleep(0))
        assert not len(engine.engine.pool)
        engine.release("a", "abort")
        await engine.stop("the test ends")

    asyncio.run(play())


@pytest.mark.parametrize("begins", [True, False])
def test_a_released_request_no_longer_waits_for_its_grammar(begins):
    """An API process releases requests without cancelling anything here; their grammars would delay all others."""
    waiting: list[str] = []

    class Grammars:
        async def compile(self, grammar: Grammar, vocabulary_size: int, tokens: Sequence[int]) -> TokenMatcher:
            waiting.append(grammar.text)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                waiting.remove(grammar.text)
            raise AssertionError

        async def close(self) -> None:
            pass

    async def play() -> None:
        engine = make_engine()
        engine.grammars = cast("GrammarCompiler", Grammars())
        submission = Submission(
            "r", (1,), 1, SamplingParameters(), frozenset(), grammar=Grammar(GrammarKind.REGEX, "a")
        )
        accepted = engine.submit(submission, lambda _: None)
        if begins:
            await asyncio.sleep(0)
            assert waiting == ["a"]
        # The engine does not have it yet: it is not taken for stalled.
        assert (engine.status.progress.num_unfinished, engine.idle) == (0, False)
        engine.release("r", "abort")
        async with asyncio.timeout(60):
            assert await accepted is None
        assert not waiting
        assert (engine.status.progress.num_unfinished, engine.idle) == (0, True)
        await engine.stop("the test ends")

    asyncio.run(play())


def test_the_times_of_a_request_begin_at_its_arrival():
    """Not at its submission, before which its texts are tokenized."""

    async def play() -> None:
        engine = make_engine(starts=False)
        submission = Submission("a", [1], 4, SamplingParameters(), frozenset(), arrived=time.monotonic() - 1000)
        engine.submit(submission, lambda output: None)
        engine._distribute([Output("a", 1, None), Output("a", 2, FinishReason.LENGTH)])
        text = (await engine.metrics()).decode()
        for name in ("time_to_first_token", "e2e_request_latency"):
            assert float(text.partition(f'\norca:{name}_seconds_sum{{model_name="m"}} ')[2].split()[0]) >= 1000

    asyncio.run(play())


def test_a_scrape_has_the_stages_of_the_pipelines_of_the_topology():
    async def play() -> None:
        engine = make_engine(starts=False)
        metrics = cast(Metrics, engine._metrics)
        for pipeline in ("a", "removed"):
            metrics.on_timing(pipeline, pb.StageTiming(sequence=1, partition=0))
        assert 'pipeline="removed"' in (await engine.metrics()).decode()
        metrics.watch(engine.engine)
        text = (await engine.metrics()).decode()
        assert 'pipeline="a"' in text
        assert 'pipeline="removed"' not in text

    asyncio.run(play())


def test_a_request_of_an_earlier_master_is_counted_once_by_both_and_its_times_by_none():
    """The earlier master has counted the prompt and the first token; the clock of the arrival ended with it."""

    async def play() -> None:
        engine = make_engine(starts=False)
        for name, before in (("a", [7, 8, 9]), ("b", [])):
            submission = Submission(name, [1, 2], 9, SamplingParameters(), frozenset(), generated=before)
            engine.submit(submission, lambda output: None)
            engine._distribute([Output(name, 1, None), Output(name, 2, FinishReason.LENGTH)])
        text = (await engine.metrics()).decode()
        for sample in (
            'orca:prompt_tokens_total{model_name="m"} 2.0',  # of b
            'orca:generation_tokens_total{model_name="m"} 4.0',
            'orca:request_success_total{finished_reason="length",model_name="m"} 2.0',
            'orca:request_prompt_tokens_sum{model_name="m"} 4.0',
            'orca:request_generation_tokens_sum{model_name="m"} 7.0',
            *(
                f'orca:{name}_seconds_count{{model_name="m"}} 0.0'
                for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "request_decode_time")
            ),
        ):
            assert sample in text, sample

    asyncio.run(play())


def test_metrics_count_tokens_of_batches_and_not_their_times():
    async def play() -> None:
        engine = make_engine(starts=False)
        for name, service_class in (("a", ServiceClass.BATCH), ("b", ServiceClass.INTERACTIVE)):
            submission = Submission(name, [1, 2], 4, SamplingParameters(), frozenset(), service_class=service_class)
            engine.submit(submission, lambda output: None)
            engine._distribute([Output(name, 1, None), Output(name, 2, FinishReason.LENGTH)])
        text = (await engine.metrics()).decode()
        for sample in (
            'orca:prompt_tokens_total{model_name="m"} 4.0',
            'orca:generation_tokens_total{model_name="m"} 4.0',
            'orca:batch_request_success_total{finished_reason="length",model_name="m"} 1.0',
            'orca:request_success_total{finished_reason="length",model_name="m"} 1.0',
            'orca:time_to_first_token_seconds_count{model_name="m"} 1.0',
            'orca:e2e_request_latency_seconds_count{model_name="m"} 1.0',
        ):
            assert sample in text

    asyncio.run(play())
