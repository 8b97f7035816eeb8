"""Log probabilities of prompts on their way through scheduler and engine: every position once, whatever happens."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_master.engine import supervisor as supervisor_module
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.iteration_message import build_iteration
from orca_master.engine.messages import Submission
from orca_master.scheduling import room
from orca_master.scheduling.kv_ledger import KvLedger, shareable_blocks
from orca_master.scheduling.prefix_cache import PrefixCache
from orca_master.scheduling.request import LOSSES_BEFORE_ALONE, Request
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.sampling_parameters import MAX_LOGPROBS, SamplingParameters
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from orca_protos import engine_pb2 as pb
from orca_protos.wire import MAX_MESSAGE_BYTES
from support.fake_engine import Engine, play, topology
from support.fake_workers import continuation, prompt_logprobs

KILLED = WorkerLostError("worker a:0: killed")
WANTED = SamplingParameters(prompt_logprobs=2)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RETRY_SECONDS", 0.001)


def positions(made: Engine, name: str) -> list[int]:
    """Return the positions that the parts of a request name (fake_workers.prompt_logprobs)."""
    return [position for part in made.prompt_logprobs.get(name, ()) for position in part.rank]


requests = st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.integers(1, 12)), min_size=1, max_size=12)


@given(
    requests,
    st.sampled_from([None, 5, 16, 40]),
    st.sampled_from(["reserve", "paged"]),
    st.booleans(),
    st.sampled_from([1, 2]),
    st.lists(st.integers(1, 12), max_size=LOSSES_BEFORE_ALONE),
)
def test_every_position_returns_once_whatever_is_preempted_lost_or_cached(
    requests, budget, admission, caching, partitions, losses
):
    """Requests with equal beginnings on two pipelines, one of which is lost after some iterations.

    With another loss the engine would end the requests that it suspects.
    """

    async def scene(made: Engine) -> None:
        await made.engine.start()
        for index, (length, wanted, max_tokens) in enumerate(requests):
            sampling = WANTED if wanted else SamplingParameters()
            made.engine.submit(Submission(str(index), tuple(range(1, length + 1)), max_tokens, sampling, frozenset()))
        collecting = asyncio.create_task(made.collect(len(requests)))
        for iterations in losses:
            await made.lose_after(iterations, "a", KILLED, collecting.done)
        tokens = await collecting
        for index, (length, wanted, max_tokens) in enumerate(requests):
            prompt = tuple(range(1, length + 1))
            assert tokens[str(index)] == continuation(prompt, max_tokens)
            assert positions(made, str(index)) == (list(range(length - 1)) if wanted else [])

    config = EngineConfig(
        worker_owner=WorkerOwner.CLUSTER, recovery_timeout=60.0, max_batch_size=4, token_budget=budget,
        admission=admission, prefix_caching=caching,
    )  # fmt: skip
    play(lambda: Engine(topology("a", "b", partitions=partitions), config, num_blocks=6), scene)


def test_a_prompt_with_log_probabilities_is_computed_again_and_shared_by_later_requests():
    prompt = tuple(range(1, 50))

    async def scene(made: Engine) -> None:
        await made.engine.start()
        for number, sampling in enumerate((SamplingParameters(), WANTED, SamplingParameters(), WANTED)):
            made.batches.clear()
            made.engine.submit(Submission(str(number), prompt, 1, sampling, frozenset()))
            await made.collect(1)
            computed = sum(entry.num_tokens for _, batch in made.batches for entry in batch.requests)
            assert computed == (1 if number == 2 else len(prompt))

    play(lambda: Engine(topology("a")), scene)


def test_a_resumed_request_does_not_return_them_again():
    """They came with its first token; a request without a token begins anew."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        for name, generated in (("with", (7,)), ("without", ())):
            made.engine.submit(Submission(name, (1, 2, 3), 4, WANTED, frozenset(), generated=generated))
        await made.collect(2)
        assert (positions(made, "with"), positions(made, "without")) == ([], [0, 1])

    play(lambda: Engine(topology("a")), scene)


def request(arrival: int, length: int, sampling: SamplingParameters = WANTED) -> Request:
    return Request(str(arrival), arrival, tuple(range(100 * arrival, 100 * arrival + length)), 3, sampling)


def scheduler(token_budget: int | None = None) -> Scheduler:
    made = Scheduler(SchedulerConfig(8, 1, token_budget, balanced=False), RequestPool(100, 10_000))
    made.add_pipeline("p", KvLedger(100, PrefixCache()))
    return made


def test_a_replayed_request_shares_the_blocks_before_its_first_missing_position():
    entry = request(1, 50)
    assert shareable_blocks(entry) == 0
    for returned, blocks in ((15, 0), (16, 1), (47, 2), (48, 3), (49, 3)):
        entry.num_positions_read = returned
        assert shareable_blocks(entry) == blocks
    assert shareable_blocks(request(1, 50, SamplingParameters())) == 49 // BLOCK_SIZE
    assert shareable_blocks(request(1, 1)) == 0


def test_an_iteration_names_the_tokens_after_its_positions_and_a_replay_only_the_missing_ones():
    made = scheduler(token_budget=20)
    made.pool.add(request(1, 45))
    found = []
    for _ in range(2):
        batch = made.dispatch("p", made.select("p"))
        found.append(build_iteration(1, 1, batch).prompt[0])
        batch.requests[0].request.num_positions_read += len(found[-1].token)
        made.commit(batch, [])
    (held,) = made.admitted
    made.rewind(held)
    for _ in range(2):
        batch = made.dispatch("p", made.select("p"))
        found.extend(build_iteration(1, 1, batch).prompt)
        made.commit(batch, [7] * batch.requests[0].samples)
    assert [(entry.index, entry.first, entry.num_likeliest) for entry in found] == [(0, 0, 2), (0, 0, 2), (0, 8, 2)]
    assert [token for entry in found for token in entry.token] == list(range(101, 145))


def test_the_positions_of_an_iteration_are_bounded(monkeypatch):
    """The bound of a message. Requests without log probabilities, and answers, are not limited by it."""
    monkeypatch.setattr(room, "MOST_PROMPT_LOGPROBS", 32)
    made = scheduler()
    for entry in (request(1, 20), request(2, 20), request(3, 20), request(4, 20, SamplingParameters())):
        made.pool.add(entry)
    seen = []
    for _ in range(4):
        batch = made.dispatch("p", made.select("p"))
        seen.append({entry.request.request_id: entry.num_tokens for entry in batch.requests})
        for entry in batch.requests:
            entry.request.num_positions_read += len(entry.prompt_positions)
        made.commit(batch, [7] * sum(entry.samples for entry in batch.requests))
    assert seen[0] == {"1": 20, "2": 12}
    assert seen[1] == {"1": 1, "2": 8, "3": 20, "4": 20}
    assert seen[2] == {"1": 1, "2": 1, "3": 1, "4": 1}
    long = request(5, 70)
    made.pool.add(long)
    assert [entry.num_tokens for entry in made.select("p").selections if entry.request is long] == [32]


def test_a_full_iteration_lets_others_continue(monkeypatch):
    """A prompt of which another part follows waits while no position is left; answers go on."""
    monkeypatch.setattr(room, "MOST_PROMPT_LOGPROBS", 16)
    made = scheduler()
    made.pool.add(request(1, 30))
    batch = made.dispatch("p", made.select("p"))
    batch.requests[0].request.num_positions_read += len(batch.requests[0].prompt_positions)
    made.commit(batch, [])
    made.pool.add(request(2, 30, SamplingParameters()))
    monkeypatch.setattr(room, "MOST_PROMPT_LOGPROBS", 0)
    assert [selection.request.request_id for selection in made.select("p").selections] == ["2"]


def test_a_result_with_another_number_of_positions_ends_the_pipeline_and_not_the_request():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        workers = made.cluster.newest("a")
        workers.hangs = True
        made.engine.submit(Submission("r", (1, 2, 3), 2, WANTED, frozenset()))
        await made.until(lambda: made.engine.snapshot.num_running == 1 and workers.receiver is not None)
        assert workers.receiver is not None
        with pytest.raises(ValueError, match="3 log probabilities of a prompt"):
            workers.receiver.on_result(pb.IterationResult(sequence=1, token=[5], prompt=[prompt_logprobs(0, range(3))]))
        workers.lose(KILLED)
        assert await made.collect(1) == {"r": continuation((1, 2, 3), 2)}
        assert positions(made, "r") == [0, 1]

    play(lambda: Engine(topology("a"), EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=60.0)), scene)


def test_the_most_positions_of_an_iteration_fit_into_a_message():
    """Every 64th of them, with the largest ids of a vocabulary of 2 million tokens."""
    count = room.MOST_PROMPT_LOGPROBS // 64
    part = pb.PromptLogprobs(
        logprob=[-0.5] * count, rank=[2**21 - 1] * count, likely_token=[2**21 - 1] * (MAX_LOGPROBS * count),
        likely_logprob=[-0.5] * (MAX_LOGPROBS * count),
    )  # fmt: skip
    assert 64 * part.ByteSize() < 10 << 20 < MAX_MESSAGE_BYTES
