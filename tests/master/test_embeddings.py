"""Embeddings on their way through scheduler, engine and endpoint: every position once, whatever happens."""

from __future__ import annotations

import asyncio
import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.endpoint.embeddings import EmbeddingRun, Input, check_inputs, encoded, submissions_of, unit_vector
from orca_master.engine import supervisor as supervisor_module
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.iteration_message import build_iteration
from orca_master.engine.messages import Output, Submission
from orca_master.engine.progress import Progress
from orca_master.engine.recovery import Recovery
from orca_master.engine.request_limits import check_values
from orca_master.errors import EngineError, EngineUnavailableError, QueueFullError, RequestError
from orca_master.scheduling.kv_ledger import KvLedger, shareable_blocks
from orca_master.scheduling.prefix_cache import PrefixCache, block_keys
from orca_master.scheduling.prompt_budget import PromptBudget
from orca_master.scheduling.request import LOSSES_BEFORE_ALONE, FinishReason, Request, RequestState
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.sampling_parameters import SamplingParameters
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from orca_protos import engine_pb2 as pb
from support.fake_engine import Engine, play, topology
from support.fake_workers import continuation
from support.queue_client import Queue

KILLED = WorkerLostError("worker a:0: killed")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RETRY_SECONDS", 0.001)


def embedding(name: str, length: int, pooling: str | None) -> Submission:
    return Submission(
        name, tuple(range(1, length + 1)), 0, SamplingParameters(), frozenset(), pooling=pooling  # type: ignore[arg-type]
    )  # fmt: skip


async def sums(made: Engine, count: int) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Wait until `count` requests have ended; return tokens and the positions of pooled parts (fake_workers.pooled)."""
    tokens: dict[str, list[int]] = {}
    positions: dict[str, list[int]] = {}
    async with asyncio.timeout(60):
        while count:
            output = await made.outputs.get()
            assert output.finish_reason is not FinishReason.ERROR, output.error
            if output.pooled is not None:
                positions.setdefault(output.request_id, []).extend(map(int, array("f", output.pooled)))
            elif output.token is not None:
                tokens.setdefault(output.request_id, []).append(output.token)
            count -= output.finish_reason is not None
    return tokens, positions


requests = st.lists(st.tuples(st.integers(1, 40), st.sampled_from([None, "mean", "last"])), min_size=1, max_size=12)


@given(
    requests,
    st.sampled_from([None, 5, 16, 40]),
    st.sampled_from(["reserve", "paged"]),
    st.booleans(),
    st.sampled_from([1, 2]),
    st.sampled_from([0, 4]),
    st.lists(st.integers(1, 12), max_size=LOSSES_BEFORE_ALONE),
)
def test_every_position_returns_once_whatever_is_preempted_lost_or_cached(
    requests, budget, admission, caching, partitions, drafts, losses
):
    """Embeddings and answers with equal beginnings on two pipelines, one of which is lost after some iterations."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        for index, (length, pooling) in enumerate(requests):
            if pooling is None:
                made.submit(str(index), tuple(range(1, length + 1)), 5)
            else:
                made.engine.submit(embedding(str(index), length, pooling))
        collecting = asyncio.create_task(sums(made, len(requests)))
        for iterations in losses:
            await made.lose_after(iterations, "a", KILLED, collecting.done)
        tokens, positions = await collecting
        for index, (length, pooling) in enumerate(requests):
            expected = {"mean": list(range(length)), "last": [length - 1], None: None}[pooling]
            assert positions.get(str(index)) == expected
            generated = continuation(tuple(range(1, length + 1)), 5) if pooling is None else None
            assert tokens.get(str(index)) == generated

    config = EngineConfig(
        worker_owner=WorkerOwner.CLUSTER, recovery_timeout=60.0, max_batch_size=4, token_budget=budget,
        admission=admission, prefix_caching=caching, speculative_tokens=drafts,
    )  # fmt: skip
    play(lambda: Engine(topology("a", "b", partitions=partitions), config, num_blocks=6), scene)


def test_an_embedding_samples_nothing_and_frees_its_blocks_with_its_prompt():
    made = Scheduler(SchedulerConfig(8, 1, 20, balanced=False), RequestPool(100, 10_000))
    made.add_pipeline("p", KvLedger(100, PrefixCache()))
    request = Request("r", 0, tuple(range(100, 145)), 0, pooling="mean")
    made.pool.add(request)
    entries = []
    while request.state is not RequestState.FINISHED:
        batch = made.dispatch("p", made.select("p"))
        iteration = build_iteration(1, 1, batch)
        assert list(iteration.sample) == [False]
        entries += [(entry.index, entry.first) for entry in iteration.pooled]
        request.num_positions_read = batch.requests[0].prompt_positions.stop
        assert made.commit(batch, []) == []
    assert entries == [(0, 0)] * 3
    assert request.finish_reason is FinishReason.STOP
    assert made.ledger("p").num_free_blocks == 100
    assert not made.admitted


def test_the_last_token_needs_no_block_before_it_and_the_mean_needs_all():
    last, mean = (Request("r", 0, tuple(range(49)), 0, pooling=pooling) for pooling in ("last", "mean"))  # type: ignore[arg-type]
    last.num_positions_read = 48
    assert (shareable_blocks(last), shareable_blocks(mean)) == (3, 0)


def test_a_result_without_the_activations_ends_the_pipeline_and_not_the_request():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        workers = made.cluster.newest("a")
        workers.hangs = True
        made.engine.submit(embedding("r", 3, "mean"))
        await made.until(lambda: made.engine.snapshot.num_running == 1 and workers.receiver is not None)
        assert workers.receiver is not None
        with pytest.raises(ValueError, match="no activations"):
            workers.receiver.on_result(pb.IterationResult(sequence=1))
        workers.lose(KILLED)
        assert await sums(made, 1) == ({}, {"r": [0, 1, 2]})

    play(lambda: Engine(topology("a"), EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=60.0)), scene)


@pytest.mark.parametrize(
    "change", [{"max_gen_tokens": 1}, {"generated": [1]}, {"sampling": SamplingParameters(min_tokens=1)}]
)
def test_an_embedding_that_would_generate_is_refused(change):
    request = Request(
        **({"request_id": "r", "arrival": 0, "prompt": (1,), "max_gen_tokens": 0, "pooling": "last"} | change)
    )
    with pytest.raises(RequestError, match="an embedding generates no tokens"):
        check_values(request, 100)


def answer(queue: Queue, index: int, *parts: list[float]) -> None:
    """Send the parts of an input's sum; the last ends it."""
    name = sorted(queue.accepted, key=lambda name: int(name.rpartition("-")[2]))[index]
    for place, part in enumerate(parts):
        reason = FinishReason.STOP if place + 1 == len(parts) else None
        queue.receivers[name](Output(name, None, reason, pooled=array("f", part).tobytes()))


def run_of(queue: Queue, count: int) -> EmbeddingRun:
    return EmbeddingRun(queue, submissions_of("embd-1", [[1, 2]] * count, "mean", 0, "", 0, 0.0))


def test_the_parts_of_each_input_are_added_in_the_order_of_the_inputs():
    async def scene() -> None:
        queue = Queue()
        run = run_of(queue, 40)
        task = asyncio.create_task(run.run())
        while len(queue.accepted) < 40:
            await asyncio.sleep(0)
        for index in reversed(range(40)):
            answer(queue, index, [index, 1.0], [1.0, 2.0])
        assert [list(values) for values in await task] == [[index + 1.0, 3.0] for index in range(40)]
        assert set(queue.released) == set(queue.accepted)
        assert run.num_tokens == 80

    asyncio.run(scene())


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.FAULT])
def test_an_error_of_one_input_ends_all(reason):
    async def scene() -> None:
        queue = Queue()
        task = asyncio.create_task(run_of(queue, 3).run())
        while len(queue.accepted) < 3:
            await asyncio.sleep(0)
        name = next(iter(queue.accepted))
        queue.receivers[name](Output(name, None, reason, "the pipeline is lost"))
        queue.receivers[name](Output(name, None, reason, "again"))
        with pytest.raises(EngineError if reason is FinishReason.FAULT else EngineUnavailableError, match="is lost"):
            await task
        assert set(queue.released) == set(queue.accepted)

    asyncio.run(scene())


def test_the_end_of_each_input_is_noted_and_an_error_of_the_note_harms_nobody():
    async def scene() -> None:
        queue, noted = Queue(), list[int]()

        def note() -> None:
            noted.append(len(noted))
            raise ValueError("the caller's bar")

        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        submissions = submissions_of("embd-1", [[1, 2]] * 3, "mean", 0, "", 0, 0.0)
        task = asyncio.create_task(EmbeddingRun(queue, submissions, note).run())
        while len(queue.accepted) < 3:
            await asyncio.sleep(0)
        for index in range(3):
            answer(queue, index, [1.0], [1.0])
        assert len(await task) == 3
        assert noted == [0, 1, 2]

    asyncio.run(scene())


def test_a_refusal_releases_what_was_submitted():
    async def scene() -> None:
        queue = Queue(room=1)
        with pytest.raises(QueueFullError):
            await run_of(queue, 2).run()
        assert len(queue.released) == 2

    asyncio.run(scene())


def test_a_client_that_leaves_cancels_its_inputs():
    async def scene() -> None:
        queue = Queue()
        task = asyncio.create_task(run_of(queue, 2).run())
        while len(queue.accepted) < 2:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert set(queue.released.values()) == {"abort"}

    asyncio.run(scene())


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20))
def test_vectors_have_length_one_and_their_text_the_same_numbers(values):
    vector = unit_vector(array("d", values))
    if any(values):
        assert math.isclose(math.hypot(*vector), 1.0, rel_tol=1e-5)
    else:
        assert not any(vector)
    assert array("f", eval(encoded(vector, "float"))) == vector


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_activations_that_are_no_numbers_are_an_error(value):
    with pytest.raises(EngineError, match="not finite"):
        unit_vector(array("d", [1.0, value]))


def test_an_embedding_is_no_answer_whose_pace_is_kept():
    """`--target-itl` bounds the prompts beside answers."""
    request = Request("r", 0, (1, 2), 0, pooling="mean", state=RequestState.RUNNING, num_tokens_in_flight=2)
    assert not request.is_answering
    assert PromptBudget(16).limit([request], 1, SchedulerConfig(8, 1)) is None


def test_requests_with_different_adapters_share_no_block():
    """Also if a process that is not trusted sends the same salt."""
    keys = [block_keys(Request("r", 0, tuple(range(32)), 1, adapter=number), 2) for number in (0, 1, 2, 1)]
    assert len({entry[1] for entry in keys}) == 3
    assert keys[1] == keys[3]


def texts(*inputs: list[int]) -> list[Input]:
    return [Input("input", tokens) for tokens in inputs]


def test_inputs_that_can_never_be_served_are_refused_before_any_is_submitted():
    status = Queue().status
    assert isinstance(status, EngineStatus)
    check_inputs(texts([1], [99]), status, None)
    for inputs, message in (
        ([[1], []], "empty"),
        ([[100]], "vocabulary"),
        ([[1] * 65], "65 tokens, at most 64"),
        ([[1]] * 300, "300 texts, at most 256 can wait"),
    ):
        with pytest.raises(RequestError, match=message) as error:
            check_inputs(texts(*inputs), status, None)
        assert error.value.field == "input"
    check_inputs(texts([1] * 64, [1]), status, 100)
    check_inputs(texts([1] * 3), status, 3)
    with pytest.raises(RequestError, match=r"4 tokens, at most 3 are possible by max_seq_length of sentence_bert_conf"):
        check_inputs(texts([1], [1] * 4), status, 3)
    limits = 100, 64, 64, Progress(num_waiting=255), 256, 100_000
    full = EngineStatus(status.state, "", False, *limits, Recovery())
    check_inputs(texts([1]), full, None)
    with pytest.raises(QueueFullError, match="255 requests are waiting"):
        check_inputs(texts([1], [2]), full, None)
