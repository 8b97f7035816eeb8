"""New requests are refused by their expected wait; workers in this process, and a bound that any wait exceeds."""

from __future__ import annotations

import dataclasses
import math
import time

import pytest
from orca_contract.state import EngineState
from orca_master.engine import engine_client
from orca_master.engine.admission import Admission
from orca_master.engine.config import EngineConfig
from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.messages import Choices
from orca_master.engine.progress import Progress
from orca_master.engine.recovery import Recovery
from orca_master.engine.wait_margin import STEP
from orca_master.errors import QueueFullError
from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.request import Request
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from support.fake_engine import Engine, play, topology
from support.fake_workers import continuation

NO_WAIT = EngineConfig(max_batch_size=1, max_expected_wait=1e-9)


async def overloaded(made: Engine) -> None:
    """Let one request run and one wait behind it, long enough to measure iterations; then hold the workers."""
    made.submit("runs", (1,), 40)
    made.submit("waits", (2,), 40)  # accepted: nothing is measured
    await made.until(lambda: made.engine.snapshot.expected_wait > 0)
    made.cluster.newest("a").hangs = True


def test_a_request_whose_expected_wait_is_too_long_is_refused_and_accepted_when_the_queue_is_empty():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        await overloaded(made)
        with pytest.raises(QueueFullError, match=r"wait \S+ s, the limit is 1e-09 s \(--max-expected-wait\)"):
            made.submit("refused", (3,), 4)
        first = dataclasses.replace(made.submission("first", (3,), 4), choices=Choices("several", 2, 10))
        with pytest.raises(QueueFullError, match="--max-expected-wait"):
            made.engine.submit(first)
        assert made.engine.snapshot.num_waiting == 1
        made.cluster.newest("a").hangs = False
        assert await made.collect(2) == {"runs": continuation((1,), 40), "waits": continuation((2,), 40)}
        assert made.engine.snapshot.expected_wait == 0.0
        made.submit("accepted", (3,), 4)
        assert await made.collect(1) == {"accepted": continuation((3,), 4)}

    play(lambda: Engine(topology("a"), NO_WAIT), scene)


def test_the_bound_can_change_and_be_taken_back():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        await overloaded(made)
        made.engine.reconfigure(dataclasses.replace(NO_WAIT, max_expected_wait=1e9))
        made.submit("third", (3,), 4)
        made.engine.reconfigure(NO_WAIT)
        with pytest.raises(QueueFullError):
            made.submit("fourth", (3,), 4)
        made.cluster.newest("a").hangs = False
        assert (await made.collect(3))["third"] == continuation((3,), 4)

    play(lambda: Engine(topology("a"), NO_WAIT), scene)


def test_first_tokens_that_come_later_than_expected_lengthen_the_expected_wait():
    """The margin follows the lateness, 0.2 s here; without it the twenty requests would expect some milliseconds."""
    long = dataclasses.replace(NO_WAIT, max_expected_wait=1e6)

    async def scene(made: Engine) -> None:
        await made.engine.start()
        await overloaded(made)
        now = time.monotonic()
        for number in range(20):
            made.submit(f"late-{number}", (3,), 60)
        late = max(0.2, 10 * made.engine.snapshot.expected_wait)
        await made.until(lambda: time.monotonic() > now + 2 * late)
        made.cluster.newest("a").hangs = False
        await made.until(lambda: made.engine.snapshot.expected_wait > late)
        await made.collect(22)
        assert made.engine.snapshot.expected_wait == 0.0, "no request waits"

    play(lambda: Engine(topology("a"), long), scene)


@pytest.mark.parametrize("changes", [0, 1])
def test_a_request_that_waited_for_a_pipeline_says_nothing_of_the_expected_wait(changes):
    scheduler = Scheduler(SchedulerConfig(1, 1), RequestPool(10, 1000))
    admission = Admission(scheduler, dataclasses.replace(NO_WAIT, max_expected_wait=60.0))
    request = Request("late", 0, [1], 1, arrived_at=0.0, expected_wait=1.0)
    for number in range(changes):
        scheduler.add_pipeline(str(number), KvLedger(8))
    admission.note_first_token(request, 40.0)
    admission.expected_wait.seconds = lambda request=None: 1.0  # type: ignore[method-assign]
    assert admission.seconds == (1.0 if changes else pytest.approx(1.0 + 0.99 * STEP * 60.0))


def test_requests_that_were_accepted_before_and_further_choices_are_not_judged():
    """A resumed request of an earlier master; and the first choice decides about all of its request.

    The first comes to an empty queue, the second to a full one.
    """

    async def scene(made: Engine) -> None:
        await made.engine.start()
        new = dataclasses.replace(made.submission("choice-0", (3,), 4), choices=Choices("choice", 2, 10))
        made.engine.submit(new)
        await overloaded(made)
        with pytest.raises(QueueFullError):
            made.submit("refused", (3,), 4)
        made.engine.submit(dataclasses.replace(new, request_id="choice-1"))
        token = continuation((3,), 1)
        made.engine.submit(dataclasses.replace(new, request_id="resumed", generated=token))
        made.cluster.newest("a").hangs = False
        tokens = await made.collect(5)
        assert tokens["choice-1"] == token + tokens["resumed"] == continuation((3,), 4)

    play(lambda: Engine(topology("a"), NO_WAIT), scene)


@pytest.mark.parametrize(
    ("state", "expected_wait", "full", "unavailable"),
    [
        (EngineState.SERVING, 0.0, 1, 1),
        (EngineState.SERVING, 0.2, 1, 1),
        (EngineState.SERVING, 40.5, 41, 1),
        (EngineState.RECOVERING, 40.5, 47, 6),
    ],
)
def test_retry_after_is_the_expected_wait_and_the_rest_of_a_recovery(
    monkeypatch, state, expected_wait, full, unavailable
):
    monkeypatch.setattr(engine_client.time, "monotonic", lambda: 1004.0)
    recovery = Recovery(since=1000.0, usual=10.0, longest_wait=60.0)
    status = EngineStatus(state, "", False, 9, 9, 9, Progress(), 9, 9, recovery, expected_wait)
    assert (status.retry_after_full, status.retry_after) == (full, unavailable)
    draining = dataclasses.replace(status, draining=True)
    assert draining.retry_after_full == max(1, math.ceil(expected_wait))
