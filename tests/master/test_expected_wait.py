"""The expected wait against the true one: simulated overloads under the real scheduler, and small cases by hand."""

from __future__ import annotations

import random
import statistics

import pytest
from orca_master.engine.expected_wait import ExpectedWait
from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.policies import by_arrival, by_priority
from orca_master.scheduling.request import FinishReason, Request
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from support.overload import Arrival, Mix, Setting, Simulation, capacity, poisson
from support.variants import one_short, one_short_row

MIXES = {
    "chat": (Mix((20, 200), (100, 300)), Setting()),
    "long prompts": (Mix((1000, 3000), (20, 100)), Setting()),
    "early stops": (Mix((20, 200), (500, 1000), (0.05, 0.2)), Setting()),
    "some stop at once": (Mix((20, 200), (200, 400), (0.0, 1.0)), Setting()),
    "one token": (Mix((500, 1500), (1, 1)), Setting()),
    "two partitions": (Mix((10, 1000), (50, 200), (0.3, 1.0)), Setting(num_partitions=2)),
    "few slots": (Mix((20, 200), (100, 300)), Setting(num_blocks=300)),
    "few slots, paged": (Mix((20, 200), (100, 300), (0.3, 1.0)), Setting(num_blocks=300, admission="paged")),
}
LONG = ("early stops", "two partitions", "few slots, paged")
BOUND = 20.0


@pytest.mark.parametrize("name", one_short(MIXES, long=LONG))
def test_in_a_steady_overload_estimates_are_within_a_factor_of_two(name):
    mix, setting = MIXES[name]
    simulation = Simulation(setting, BOUND)
    simulation.run(poisson(mix, 3 * capacity(mix, setting, 30.0)), 150.0)
    steady = [entry for entry in simulation.accepted if entry.began is not None and entry.request.arrived_at > 50.0]
    ratios = [entry.estimate / entry.wait for entry in steady]
    assert len(ratios) > 20
    assert min(ratios) > 0.5
    assert max(ratios) < 2.0
    assert 0.8 < statistics.median(ratios) < 1.25
    assert len(simulation.refused) > len(steady), "two thirds are refused"


@pytest.mark.parametrize("name", one_short(MIXES, long=LONG))
def test_at_the_onset_nobody_is_accepted_into_a_wait_far_beyond_the_bound(name):
    """From an idle server that has measured nothing; and the queue is used up to the bound."""
    mix, setting = MIXES[name]
    simulation = Simulation(setting, BOUND)
    simulation.run(poisson(mix, 3 * capacity(mix, setting, 30.0)), 3 * BOUND)
    waits = [entry.wait for entry in simulation.accepted if entry.began is not None]
    assert max(waits) < 1.5 * BOUND
    assert max(waits) > 0.6 * BOUND


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MIXES)
def test_five_minutes_of_overload_at_the_default_and_at_a_short_bound(name):
    """p99 waits of accepted requests: at most 1.2 x (60 s + that at 90 %); at twice that at 90 %, 2.5 x that."""
    mix, setting = MIXES[name]
    most = capacity(mix, setting, 30.0)

    def p99(rate: float, bound: float) -> float:
        simulation = Simulation(setting, bound)
        simulation.run(poisson(mix, rate * most), 300.0)
        waits = sorted(entry.wait for entry in simulation.accepted if entry.began is not None)
        return waits[int(0.99 * len(waits))]

    before = p99(0.9, float("inf"))
    assert p99(3.0, 60.0) <= 1.2 * (60.0 + before)
    assert p99(3.0, 2 * before) <= 2.5 * before


@pytest.mark.exhaustive
@pytest.mark.parametrize("most", [2000, 32_000])
def test_when_the_mixture_changes_the_bound_still_holds(most):
    """Five minutes of chat that uses a part of its maximum; then completions that use all, at twice the capacity."""
    chat = Mix((20, 200), (most, most), (100 / most, 300 / most))
    completions = Mix((20, 200), (300, 300))
    simulation = Simulation(Setting(), 60.0)
    simulation.run(poisson(chat, 0.9 * capacity(Mix((20, 200), (100, 300)), Setting(), 30.0)), 300.0)
    before = sorted(entry.wait for entry in simulation.accepted if entry.began is not None)
    burst = poisson(completions, 2 * capacity(completions, Setting(), 30.0), start=300.0)
    simulation.run(burst, 500.0)
    since = [entry for entry in simulation.accepted if entry.request.arrived_at > 300.0 and entry.began is not None]
    waits = sorted(entry.wait for entry in since)
    assert len(waits) > 200
    assert 50.0 < waits[int(0.99 * len(waits))] <= 1.2 * (60.0 + before[int(0.99 * len(before))])


@pytest.mark.parametrize("most", [1000, pytest.param(8000, marks=pytest.mark.exhaustive), 32_000])
@pytest.mark.parametrize(("number", "are_refused"), one_short_row([(64, False), (128, False), (512, True)]))
def test_a_burst_at_an_idle_server_is_refused_only_if_it_would_wait(most, number, are_refused):
    """50 requests per second without `max_tokens`, before any answer has ended. Retry-After is near the truth."""
    drawn = random.Random(1)
    burst = [Arrival(0.02 * index, 100, most, drawn.randint(100, 300)) for index in range(number)]
    bounded, free = Simulation(Setting(), 60.0), Simulation(Setting())
    bounded.run(iter(burst), 1e9)
    free.run(iter(burst), 1e9)
    waits = {entry.request.arrived_at: entry.wait for entry in free.accepted}
    assert (len(bounded.refused) > 0) is are_refused
    assert all(waits[time] > 30.0 for time in bounded.refused)
    for time, retry_after in zip(bounded.refused, bounded.retry_after, strict=True):
        ahead = [entry for entry in bounded.accepted if entry.request.arrived_at < time]
        assert 1 / 3 < retry_after / (ahead[-1].request.arrived_at + ahead[-1].wait - time) < 3


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_a_burst_after_few_requests_is_refused_only_if_it_would_wait(seed):
    """On a busy machine. Iterations that are cut for the target have few answers: a full batch makes these cheaper."""
    setting = Setting(8, base=0.01, per_prompt=0.0004, per_row=0.0003, target_itl=0.2, noise=0.5, seed=seed)
    few = [Arrival(0.0, 500, 64, 64), *(Arrival(0.5, 300, 64, 64) for _ in range(3))]
    burst = [Arrival(100.0 + 0.004 * index, 272, 64, 64) for index in range(80)]
    bounded, free = Simulation(setting, 60.0), Simulation(setting)
    bounded.run(iter([*few, *burst]), 1e9)
    free.run(iter([*few, *burst]), 1e9)
    assert max(entry.wait for entry in free.accepted) < 40.0
    assert not bounded.refused


def test_idle_time_changes_nothing():
    def estimates(pause: float) -> list[float]:
        mix, setting = MIXES["chat"]
        simulation = Simulation(setting)
        simulation.run(iter([next(poisson(mix, 1.0))._replace(time=0.0) for _ in range(100)]), 1e9)
        later = simulation.now + pause
        first = len(simulation.accepted)
        simulation.run(iter([Arrival(later, 50, 200, 200) for _ in range(100)]), later + 1.0)
        return [entry.estimate for entry in simulation.accepted[first:]]

    assert estimates(0.001) == pytest.approx(estimates(5000.0), rel=1e-6)
    assert max(estimates(5000.0)) > 3.0


# -- by hand -----------------------------------------------------------------------------------------------------------


def request(number: int, prompt: int = 10, answer: int = 100, priority: int = 0) -> Request:
    return Request(f"r{number}", number, [1] * prompt, answer, priority=priority)


def scheduler(*requests: Request, max_batch_size: int = 1, order=by_arrival) -> Scheduler:
    made = Scheduler(SchedulerConfig(max_batch_size, 1, 2048), RequestPool(100, 1 << 30, order))
    made.add_pipeline("a", KvLedger(1000))
    for entry in requests:
        made.pool.add(entry)
    return made


def iterate(expected: ExpectedWait, of: Scheduler, now: float, seconds: float) -> None:
    batch = of.dispatch("a", of.select("a"))
    expected.note_sent(batch, now)
    expected.note_returned(batch, now + seconds)
    of.commit(batch, [1] * sum(entry.samples for entry in batch.requests))


def test_nothing_is_expected_before_the_first_measurement_and_while_nobody_waits():
    made = scheduler(request(0), request(1), request(2))
    expected = ExpectedWait(made)
    assert expected.seconds() == 0.0
    iterate(expected, made, 0.0, 1.0)
    assert expected.seconds() > 0.0
    for entry in list(made.pool):
        made.cancel(entry)
    assert made.num_running == 1
    assert expected.seconds() == 0.0


def test_the_wait_is_the_work_ahead_at_the_measured_costs():
    """A prompt's token takes 0.01 s, an iteration 0.1 s more. The answer that runs has 64 of 100 tokens, 50 on average:
    nothing has stopped, so all are expected to reach their maximum."""
    made = scheduler(*(request(number, prompt=10 * (number + 1)) for number in range(3)))
    expected = ExpectedWait(made)
    iterate(expected, made, 0.0, 0.2)
    for number in range(63):
        iterate(expected, made, 1.0 + number, 0.1)
    assert expected.seconds() == pytest.approx(0.01 * (20 + 30) + 0.1 * (200 + 100 - 64 - 50), rel=1e-3)


def test_answers_count_with_the_lengths_of_the_last_ones():
    """Two wait; the answer that runs has 2 of 10 tokens, 5 on average. Requests without a token change nothing."""
    made = scheduler(*(request(number, answer=1000) for number in range(3)))
    expected = ExpectedWait(made)
    iterate(expected, made, 0.0, 0.2)
    iterate(expected, made, 1.0, 0.1)
    for number in range(200):
        ended = request(10 + number, answer=1000)
        ended.generated = [1] * (10 if number % 2 else 0)
        expected.note_end(ended)
    assert expected.seconds() == pytest.approx(0.01 * 20 + 0.1 * (20 + 8 - 5), rel=0.1)


def test_an_iteration_is_expected_to_take_as_long_as_the_latest_ones_of_its_pipeline():
    """At once, also after many of a larger batch or a slow first one: else none would be sent ahead for seconds."""
    made = scheduler(request(0, answer=1000))
    expected, now = ExpectedWait(made), 0.0

    def expected_times(count: int, seconds: float) -> list[float]:
        nonlocal now
        times = []
        for _ in range(count):
            now += 1.0
            batch = made.dispatch("a", made.select("a"))
            expected.note_sent(batch, now)
            begun, expected_seconds = expected.expected_time(batch)
            assert begun == now
            expected.note_returned(batch, now + seconds)
            made.commit(batch, [1])
            times.append(expected_seconds)
        return times

    assert expected_times(3, 0.03)[:2] == [0.0, 0.0], "a prompt, and before the first measurement"
    assert expected_times(500, 0.03) == pytest.approx([0.03] * 500)
    assert expected_times(10, 0.006) == pytest.approx([0.03] + [0.006] * 9)
    assert expected_times(10, 0.03) == pytest.approx([0.006] * 4 + [0.03] * 6), "the shortest of four"


@pytest.mark.parametrize("budget", [1, 2])
def test_at_a_token_budget_of_one_each_token_of_a_prompt_is_an_iteration(budget):
    """All iterations take 10 ms. The second request comes between two of the first one's prompt: the first iteration
    for which a request waits neither admits a request nor samples a token."""
    made = scheduler(request(0, prompt=50, answer=20))
    made.config = SchedulerConfig(1, 1, budget)
    expected = ExpectedWait(made)
    iterate(expected, made, 0.0, 0.01)
    made.pool.add(request(1, prompt=10, answer=20))
    assert expected.seconds() == 0.0
    iterate(expected, made, 0.01, 0.01)
    assert 0.0 < expected.seconds() < 1.0, "not a token is generated yet"
    now = 0.02
    while len(made.admitted[0].generated) < 16:
        iterate(expected, made, now, 0.01)
        now += 0.01
    assert 0.5 < expected.seconds() / (0.01 * (4 + 10 / budget + 20)) < 2.0


def test_with_priorities_only_the_requests_ahead_count():
    made = scheduler(*(request(number, priority=number % 2) for number in range(7)), order=by_priority)
    expected = ExpectedWait(made)
    iterate(expected, made, 0.0, 0.2)
    iterate(expected, made, 1.0, 0.1)
    urgent, later, last = (expected.seconds(request(10 + level, priority=level)) for level in (-1, 0, 1))
    assert urgent == 0.0
    assert 0.0 < later < last
    assert last == expected.seconds() == expected.seconds(request(20, priority=50))


def test_requests_that_can_begin_at_once_delay_others_only_by_their_prompts():
    made = scheduler(*(request(number) for number in range(3)), max_batch_size=2)
    expected = ExpectedWait(made)
    iterate(expected, made, 0.0, 0.2)
    for number in range(31):
        iterate(expected, made, 1.0 + number, 0.1)
    crowded = expected.seconds()
    made.cancel(made.admitted[0], FinishReason.STOP)
    assert 0.0 < expected.seconds() < crowded / 10


def test_the_time_of_a_lost_iteration_is_not_measured():
    made = scheduler(*(request(number) for number in range(3)))
    expected = ExpectedWait(made)
    iterate(expected, made, 0.0, 0.2)
    iterate(expected, made, 1.0, 0.1)
    lost = made.dispatch("a", made.select("a"))
    expected.note_sent(lost, 2.0)
    made.remove_pipeline("a")
    expected.note_lost("a")
    recovering = expected.seconds()
    expected.note_returned(lost, 400.0)
    assert expected.seconds() == recovering
    made.add_pipeline("a", KvLedger(1000))
    iterate(expected, made, 500.0, 0.1)
    assert 0.0 < recovering < 60.0
    assert 0.0 < expected.seconds() < 60.0


@pytest.mark.parametrize("num_accepted", [0, 3])
def test_accepted_drafts_make_generated_tokens_cheaper(num_accepted):
    made = scheduler(request(0), request(1))
    expected = ExpectedWait(made)
    iterate(expected, made, 0.0, 0.4)
    for number in range(60):
        batch = made.dispatch("a", made.select("a"))
        expected.note_sent(batch, 1.0 + number)
        expected.note_returned(batch, 1.4 + number, num_accepted)
        made.commit(batch, [1])
    costs = expected._costs.costs
    assert costs is not None
    assert costs.generated == pytest.approx(0.4 / (1 + num_accepted), rel=0.05)


def test_pipelines_share_the_work():
    waits = []
    for names in ("a", "ab"):
        made = scheduler(*(request(number) for number in range(6)))
        expected = ExpectedWait(made)
        for name in names[1:]:
            made.add_pipeline(name, KvLedger(1000))
        for name in names:
            for now in range(2):
                batch = made.dispatch(name, made.select(name))
                expected.note_sent(batch, now)
                expected.note_returned(batch, now + 0.1)
                made.commit(batch, [1])
        waits.append(expected.seconds())
    assert waits[0] > 2 * waits[1] > 0.0
