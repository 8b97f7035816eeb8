"""A simulated pipeline under the real `Scheduler`, for tests of the expected wait: the clock is simulated, and the time
of an iteration is linear in its tokens."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from orca_master.engine.expected_wait import ExpectedWait
from orca_master.engine.wait_margin import WaitMargin
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.kv_ledger import LEDGERS
from orca_master.scheduling.request import Request
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig

STOP_TOKEN = 7


@dataclass(frozen=True)
class Mix:
    """Lengths of prompts and answers in tokens; `used`: the fraction of `max_gen_tokens` that a request generates."""

    prompt: tuple[int, int]
    answer: tuple[int, int]
    used: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True)
class Setting:
    """The server. An iteration takes base + per_prompt x prompt tokens + per_row x other rows, over partitions."""

    max_batch_size: int = 32
    num_partitions: int = 1
    admission: str = "reserve"
    num_blocks: int = 100_000
    base: float = 0.03
    per_prompt: float = 0.0002
    per_row: float = 0.0005
    target_itl: float | None = None
    """Seconds; prompts are cut for it."""
    noise: float = 0.0
    """Iterations take up to so much of their time longer, as on a busy machine, at random from `seed`."""
    seed: int = 0


class Arrival(NamedTuple):
    """A request that comes at `time`, in seconds, and stops after `length` tokens."""

    time: float
    prompt: int
    max_gen_tokens: int
    length: int


@dataclass
class Accepted:
    """An accepted request. Times in seconds; `began`: when its first iteration was sent."""

    request: Request
    estimate: float
    length: int
    began: float | None = None

    @property
    def wait(self) -> float:
        assert self.began is not None
        return self.began - self.request.arrived_at


@dataclass
class Simulation:
    """One pipeline and its queue. Requests whose expected wait, with the margin, exceeds `longest_wait` are refused."""

    setting: Setting
    longest_wait: float = float("inf")
    now: float = 0.0
    accepted: list[Accepted] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    """Times of the refusals."""
    retry_after: list[float] = field(default_factory=list)
    """The wait that each refusal states: that behind all waiting requests, with the margin."""
    num_ended: int = 0

    def __post_init__(self) -> None:
        setting = self.setting
        spare = setting.num_partitions > 1
        config = SchedulerConfig(setting.max_batch_size, setting.num_partitions, 2048, keeps_spare_iteration=spare)
        self.scheduler = Scheduler(config, RequestPool(1 << 30, 1 << 60))
        self.scheduler.add_pipeline("a", LEDGERS[setting.admission](setting.num_blocks))
        self.expected = ExpectedWait(self.scheduler)
        self.margin = WaitMargin()
        self._noise = random.Random(setting.seed)
        self._by_id: dict[str, Accepted] = {}
        self._in_flight: deque[tuple[float, Batch]] = deque()
        self._free_at = [0.0] * setting.num_partitions

    def run(self, arrivals: Iterator[Arrival], until: float) -> None:
        """Serve `arrivals` up to the time `until`; without further arrivals, until no request is left."""
        coming = next(arrivals, None)
        while self.now < until and (coming or self._in_flight):
            if self._in_flight and (coming is None or self._in_flight[0][0] <= coming.time):
                self.now, batch = self._in_flight.popleft()
                self._return(batch)
            elif coming is not None:
                self.now = coming.time
                self._arrive(coming)
                coming = next(arrivals, None)

    def _arrive(self, arrival: Arrival) -> None:
        number = len(self._by_id)
        request = Request(f"r{number}", number, [1] * arrival.prompt, arrival.max_gen_tokens,
                          stop_token_ids=frozenset({STOP_TOKEN}), arrived_at=arrival.time)  # fmt: skip
        estimate, margin = self.expected.seconds(request), self.margin.seconds(self.longest_wait)
        if estimate and estimate + margin > self.longest_wait:
            self.refused.append(arrival.time)
            self.retry_after.append(self.expected.seconds() + margin)
            return
        accepted = self._by_id[request.request_id] = Accepted(request, estimate, arrival.length)
        self.accepted.append(accepted)
        self.scheduler.pool.add(request)
        self._send()

    def _send(self) -> None:
        target = self.setting.target_itl
        if target is not None and (budget := self.expected.prompt_budget(target)) is not None:
            self.scheduler.prompt_budget = budget
        while proposal := self.scheduler.select("a"):
            batch = self.scheduler.dispatch("a", proposal)
            self.expected.note_sent(batch, self.now)
            for scheduled in batch.requests:
                accepted = self._by_id[scheduled.request.request_id]
                accepted.began = self.now if accepted.began is None else accepted.began
            done, seconds = self.now, self._seconds(batch)
            for stage, free_at in enumerate(self._free_at):
                done = self._free_at[stage] = max(done, free_at) + seconds
            self._in_flight.append((done, batch))

    def _seconds(self, batch: Batch) -> float:
        rows = sum(entry.num_tokens == 1 for entry in batch.requests)
        prompt = sum(entry.num_tokens for entry in batch.requests) - rows
        setting = self.setting
        seconds = setting.base + setting.per_prompt * prompt + setting.per_row * rows
        return seconds * (1 + self._noise.uniform(0.0, setting.noise)) / setting.num_partitions

    def _return(self, batch: Batch) -> None:
        tokens = []
        for scheduled in batch.requests:
            if scheduled.samples:
                length = self._by_id[scheduled.request.request_id].length
                tokens.append(STOP_TOKEN if len(scheduled.request.generated) + 1 >= length else 1)
        self.expected.note_returned(batch, self.now)
        for _, request in self.scheduler.commit(batch, tokens):
            if len(request.generated) == 1 and (estimate := self._by_id[request.request_id].estimate):
                self.margin.note(self.now - request.arrived_at - estimate, self.longest_wait)
            if request.finish_reason is not None:
                self.expected.note_end(request)
                self.num_ended += 1
        self._send()


def poisson(mix: Mix, rate: float, seed: int = 0, start: float = 0.0) -> Iterator[Arrival]:
    """Yield random arrivals for ever, `rate` per second."""
    drawn, now = random.Random(seed), start
    while True:
        now += drawn.expovariate(rate)
        answer = drawn.randint(*mix.answer)
        yield Arrival(now, drawn.randint(*mix.prompt), answer, max(1, round(answer * drawn.uniform(*mix.used))))


def capacity(mix: Mix, setting: Setting, seconds: float) -> float:
    """Return the requests per second that end while the queue is never empty, in `seconds` after as many."""
    simulation = Simulation(setting)
    drawn = poisson(mix, 1.0)
    crowd = iter([next(drawn)._replace(time=0.0) for _ in range(4000)])
    simulation.run(crowd, seconds)
    before, since = simulation.num_ended, simulation.now
    simulation.run(iter(()), 2 * seconds)
    assert len(simulation.scheduler.pool) > 0
    return (simulation.num_ended - before) / (simulation.now - since)
