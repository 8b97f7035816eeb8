"""Losses of pipelines that count against requests: who runs alone, who fails, and who is never blamed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_contract.state import PipelinePhase
from orca_master.engine import supervisor as supervisor_module
from orca_master.engine.attempts import MAX_ATTEMPTS, MAX_CULPRITS
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.faults import Evidence, WorkerLostError, closest, lost_worker
from orca_master.scheduling.kv_ledger import LEDGERS
from orca_master.scheduling.request import FinishReason, Request
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from orca_protos import engine_pb2 as pb
from orca_protos.exit_code import is_sent
from support.fake_engine import Engine, play, topology
from support.fake_workers import continuation

PARENT = EngineConfig(worker_owner=WorkerOwner.PARENT, recovery_timeout=60.0)
CRASH = WorkerLostError("worker a:1: rank 0 ended: killed by SIGSEGV", None, "a:1")
KILL = WorkerLostError("worker a:1: rank 0 ended: killed by SIGKILL", None, "a:1", outside=True)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RETRY_SECONDS", 0.001)


def poison(
    made: Engine, names: set[str], error: WorkerLostError = CRASH, times: Container[int] = range(1, 1000)
) -> Callable[[], int]:
    """Lose the pipeline at the iterations with one of the requests `names`, counted from 1, that are in `times`.

    Returns a function that returns the number of losses.
    """
    send, losses, iterations = made.on_dispatch, 0, 0

    def on_dispatch(sequence: int, batch) -> None:
        nonlocal losses, iterations
        send(sequence, batch)
        if names & {scheduled.request.request_id for scheduled in batch.requests}:
            iterations += 1
            if iterations in times:
                losses += 1
                made.cluster.newest(batch.pipeline).hangs = True
                made.cluster.newest(batch.pipeline).lose(error)

    made.on_dispatch = on_dispatch  # type: ignore[method-assign]
    return lambda: losses


async def outcome(made: Engine, count: int) -> tuple[dict[str, list[int]], dict[str, str | None]]:
    """Return the tokens of `count` requests that ended well or as a FAULT, and the errors of the latter."""
    tokens: dict[str, list[int]] = {}
    errors = {}
    while count:
        output = await made.outputs.get()
        assert output.finish_reason is not FinishReason.ERROR, output.error
        count -= output.finish_reason is not None
        if output.finish_reason is FinishReason.FAULT:
            errors[output.request_id] = output.error
        elif output.token is not None:
            tokens.setdefault(output.request_id, []).append(output.token)
    return tokens, errors


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("names", [{"r3"}, {"r0", "r2", "r3", "r5", "r6", "r7"}])
def test_requests_that_crash_workers_fail_alone_and_all_others_get_their_tokens(names, partitions):
    """Six of eight: more than the attempts in a row that a pipeline has."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        poison(made, names)
        for index in range(8):
            made.submit(f"r{index}", (index + 1,), 40)
        tokens, errors = await outcome(made, 8)
        good = {f"r{index}" for index in range(8)} - names
        assert {name: tokens[name] for name in good} == {name: continuation((int(name[1]) + 1,), 40) for name in good}
        assert set(errors) == names
        for name, error in errors.items():
            assert error == f"request {name}: workers failed on it again and again, at last alone: {CRASH}"
        num_losses = len(made.cluster.formed["a"]) - 1
        assert 2 + len(names) <= num_losses <= 3 * len(names), "two together, then each alone"
        made.assert_nothing_held()

    play(lambda: Engine(topology("a", partitions=partitions), PARENT), scene)


@pytest.mark.parametrize("fault", [CRASH, KILL])
def test_no_further_pipeline_is_lost_while_causes_are_unknown(fault):
    """Three losses, as with one pipeline: two together, one alone. Losses from outside only delay the request."""

    async def scene(made: Engine) -> None:
        made.cluster.on_made = lambda workers: setattr(workers, "conclusive_seconds", 0.05)
        await made.engine.start()
        await made.until(lambda: all(made.phase(name) is PipelinePhase.SERVING for name in "abc"))
        losses = poison(made, {"bad"}, fault, times=range(1, 6))
        made.submit("bad", (5, 6), 40)
        made.submit("good", (7,), 40)
        tokens, errors = await outcome(made, 2)
        assert tokens["good"] == continuation((7,), 40)
        if fault is CRASH:
            assert set(errors) == {"bad"}
            assert losses() == 3
        else:
            assert tokens["bad"] == continuation((5, 6), 40)
            assert losses() == 5

    play(lambda: Engine(topology("a", "b", "c"), dataclasses.replace(PARENT, lookahead=False)), scene)


@pytest.mark.parametrize("error", [KILL, WorkerLostError("gone", evidence=Evidence.GONE)])
def test_losses_from_outside_never_count(error):
    async def scene(made: Engine) -> None:
        await made.engine.start()
        losses = poison(made, {"r"}, error, times=range(1, 6))
        made.submit("r", (5, 6), 40)
        assert await outcome(made, 1) == ({"r": continuation((5, 6), 40)}, {})
        assert losses() == 5

    play(lambda: Engine(topology("a"), PARENT), scene)


def test_a_token_between_losses_begins_the_count_anew():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        losses = poison(made, {"r"}, times=range(3, 31, 3))
        made.submit("r", (5, 6), 40)
        assert await outcome(made, 1) == ({"r": continuation((5, 6), 40)}, {})
        assert losses() == 10

    play(lambda: Engine(topology("a"), dataclasses.replace(PARENT, lookahead=False)), scene)


def test_a_request_that_makes_the_engine_raise_fails_alone(monkeypatch):
    async def scene(made: Engine) -> None:
        await made.engine.start()
        dispatch = made.engine.scheduler.dispatch

        def raise_for_one(pipeline: str, proposal):
            if any(selection.request.request_id == "bad" for selection in proposal.selections):
                raise OverflowError("no such row")
            return dispatch(pipeline, proposal)

        monkeypatch.setattr(made.engine.scheduler, "dispatch", raise_for_one)
        made.submit("good", (1,), 30)
        made.submit("bad", (2,), 30)
        tokens, errors = await outcome(made, 2)
        assert tokens["good"] == continuation((1,), 30)
        assert set(errors) == {"bad"}
        assert "no such row" in (errors["bad"] or "")

    play(lambda: Engine(topology("a"), PARENT), scene)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 3),
    st.integers(8, 20),
    st.sampled_from(sorted(LEDGERS)),
    st.integers(1, 2),
    st.integers(1, 4),
)
def test_a_suspect_is_computed_alone_and_everybody_finishes(shapes, n_workers, num_blocks, admission, pipelines, cap):
    """Algorithm 1 with suspects: no other request is in flight on the pipeline that computes a suspect."""
    pool = RequestPool(100, 1_000_000)
    scheduler = Scheduler(SchedulerConfig(cap, n_workers, token_budget=16), pool)
    names = [f"p{index}" for index in range(pipelines)]
    for name in names:
        scheduler.add_pipeline(name, LEDGERS[admission](num_blocks))
    requests = [Request(f"r{index}", index, [1] * length, 5) for index, (length, _) in enumerate(shapes)]
    for request, (_, suspected) in zip(requests, shapes, strict=True):
        pool.add(request)
        if suspected:
            scheduler.suspect(request)
            scheduler.suspect(request)
    flying: dict[str, list] = {name: [] for name in names}
    for _ in range(2000):
        for name in names:
            while proposal := scheduler.select(name):
                flying[name].append(scheduler.dispatch(name, proposal))
                computing = {entry.request for batch in flying[name] for entry in batch.requests}
                assert len(computing) == 1 or not any(request.runs_alone for request in computing)
        for batches in flying.values():
            if batches:
                batch = batches.pop(0)
                scheduler.commit(batch, [9] * sum(entry.samples for entry in batch.requests))
        if all(request.finish_reason for request in requests):
            break
    assert all(request.finish_reason is FinishReason.LENGTH for request in requests)
    assert all(ledger.num_free_blocks == num_blocks for ledger in scheduler.ledgers)


@pytest.mark.parametrize(("code", "sent"), [(-9, True), (-15, True), (-11, False), (-6, False), (1, False), (0, False)])
def test_a_crash_is_told_from_a_signal_of_another_process(code, sent):
    assert is_sent(code) is sent


def test_a_fault_says_whether_its_cause_lies_outside():
    crash = pb.Fault(message="m", kind=pb.FAULT_KIND_CAUSE, tensor_rank=0)
    kill = pb.Fault(message="n", kind=pb.FAULT_KIND_CAUSE, tensor_rank=1, outside=True)
    consequence = pb.Fault(message="o", kind=pb.FAULT_KIND_CONSEQUENCE, tensor_rank=1)
    errors = [lost_worker(fault, "a:1") for fault in (crash, kill, consequence)]
    assert [error.outside for error in errors] == [False, True, True]
    both = closest(errors)
    assert isinstance(both, WorkerLostError)
    assert not both.outside, "one of two causes may be a computation"


def test_a_machine_on_which_every_request_fails_is_given_up():
    """The fault is then not in the requests, of which the first MAX_CULPRITS that fail alone grant new attempts."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        names = {f"r{index}" for index in range(40)}
        poison(made, names)
        for name in sorted(names):
            made.submit(name, (1,), 10)
        await made.engine.failed.wait()
        reasons = [made.outputs.get_nowait().finish_reason for _ in range(made.outputs.qsize())]
        assert reasons.count(FinishReason.FAULT) == MAX_CULPRITS + MAX_ATTEMPTS + 1
        assert reasons.count(FinishReason.ERROR) == len(names) - MAX_CULPRITS - MAX_ATTEMPTS - 1

    play(lambda: Engine(topology("a"), PARENT), scene)
