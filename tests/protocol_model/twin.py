"""`Twin`: the real scheduler, requests and journal, which make every step of the model too and must agree with it."""

from __future__ import annotations

import shutil
from collections import Counter, deque
from pathlib import Path

from orca_master.journal.journal import Journal
from orca_master.journal.records import Accepted, Token
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.request import FinishReason
from orca_master.scheduling.request import Request as RealRequest
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from protocol_model.state import MASTER, NUM_PARTITIONS, Bounds, Master, Phase, State, Step, prompt

PIPELINE, MODEL = "p", "m"


class Twin:
    """Follows the steps of a walk; `folder` has the journals. `covered` counts the kinds of steps that it has made."""

    def __init__(self, bounds: Bounds, folder: Path) -> None:
        self.covered: Counter[str] = Counter()
        self._bounds = bounds
        self._folder = folder
        self._num_masters = 0
        self._numbers: dict[int, int] = {}
        self._num_recorded: dict[int, int] = {}
        self._start({})
        self._journal = Journal(self._journal_folder, MODEL)

    def follow(self, step: Step, before: State, after: State) -> None:
        """Make a step; AssertionError if scheduler, requests or journal then differ from the model's."""
        served, serves = (state.master.phase is Phase.SERVING for state in (before, after))
        if step.name == "submit":
            self._submit(step.subject)
        elif step.name.startswith("kill the master"):
            self._record(after)
            self._kill()
            return
        elif step.name == "restart the master":
            self._restart()
        elif served and after.master.epoch > before.master.epoch:
            self.covered["loss"] += 1
            self._scheduler.remove_pipeline(PIPELINE)
            self._in_flight.clear()
        elif step.name == "preempt":
            self.covered["preemption"] += 1
            self._scheduler.rewind(self._holders()[-1])
        elif serves and not served:
            self._scheduler.add_pipeline(PIPELINE, KvLedger(64))
        elif served and step.message is not None and step.message.to == MASTER and step.name != "duplicate":
            self._commit(list(step.message.tokens))
        if serves:
            self._dispatch()
        self._record(after)
        if after.master.phase is not Phase.DOWN:
            self._compare(after.master)

    def close(self) -> None:
        """End the journal's thread."""
        self._journal.close()

    @property
    def _journal_folder(self) -> Path:
        return self._folder / str(self._num_masters)

    def _start(self, requests: dict[int, RealRequest]) -> None:
        self._requests = requests
        self._in_flight: deque[Batch] = deque()
        bounds = self._bounds
        config = SchedulerConfig(4, NUM_PARTITIONS, bounds.token_budget, keeps_spare_iteration=bounds.has_spare)
        self._scheduler = Scheduler(config, RequestPool(8, 1000))
        for request in requests.values():
            if request.finish_reason is None:
                self._scheduler.pool.put_back(request)

    def _request(self, index: int, generated: list[int]) -> RealRequest:
        return RealRequest(str(index), index, prompt(index, self._bounds), self._bounds.num_tokens, generated=generated)

    def _submit(self, index: int) -> None:
        self._requests[index] = self._request(index, [])
        self._scheduler.pool.add(self._requests[index])
        accepted = Accepted(str(index), "completions", {}, [list(prompt(index, self._bounds))], 9, None, 0, 0, "")
        number = self._journal.accept(accepted)
        self._numbers[index], self._num_recorded[index] = number, 0

    def _restart(self) -> None:
        """Read what the killed master has written, as the next master does."""
        self._journal = Journal(self._journal_folder, MODEL)
        requests = {}
        for number, entry in self._journal.requests.items():
            index = int(entry.accepted.request_id)
            requests[index] = self._request(index, [output.token for output in entry.tokens])
            if entry.tokens and entry.tokens[-1].finish_reason is not None:
                requests[index].finish(FinishReason.LENGTH)
            elif entry.tokens:
                self.covered["resumed with tokens"] += 1
            self._numbers[index], self._num_recorded[index] = number, len(entry.tokens)
        self._start(requests)

    def _kill(self) -> None:
        """Copy the files as the death of the process leaves them, before `close` writes the end of the journal."""
        self.covered["kill"] += 1
        written = self._journal_folder
        self._num_masters += 1
        shutil.copytree(written, self._journal_folder)
        self._journal.close()

    def _commit(self, sampled: list[int]) -> None:
        batch = self._in_flight.popleft()
        if not self._scheduler.commit(batch, sampled) and sampled:
            self.covered["stale result"] += 1

    def _dispatch(self) -> None:
        while proposal := self._scheduler.select(PIPELINE):
            batch = self._scheduler.dispatch(PIPELINE, proposal)
            self._in_flight.append(batch)
            (scheduled,) = batch.requests
            self.covered["parts of a prompt"] += scheduled.request.num_tokens_in_flight > scheduled.num_tokens
            self.covered["spare iteration"] += len(self._in_flight) > NUM_PARTITIONS

    def _holders(self) -> list[RealRequest]:
        return [request for request in self._requests.values() if self._row(request) >= 0]

    def _row(self, request: RealRequest) -> int:
        try:
            return self._scheduler.ledger(PIPELINE).holding(request).row
        except KeyError:  # no pipeline, or the request waits or has ended
            return -1

    def _record(self, after: State) -> None:
        """Write the tokens that the model's journal has beyond this one."""
        for index, tokens in enumerate(after.journal):
            for position in range(self._num_recorded.get(index, 0), len(tokens or ())):
                assert tokens is not None
                reason = "length" if position + 1 == self._bounds.num_tokens else None
                self._journal.note(self._numbers[index], Token(0, tokens[position], reason))
                self._num_recorded[index] = position + 1
        self._journal.flush()

    def _compare(self, master: Master) -> None:
        """Compare requests and iterations in flight with the model's."""
        assert set(self._requests) == {index for index, entry in enumerate(master.requests) if entry is not None}
        for index, request in self._requests.items():
            entry = master.requests[index]
            assert entry is not None
            assert (request.generated, self._row(request)) == (list(entry.generated), entry.row)
            if request.finish_reason is None:
                assert (request.num_computed, request.num_tokens_in_flight) == (entry.num_computed, entry.num_in_flight)
            else:
                assert len(request.generated) == self._bounds.num_tokens
        real = []
        for batch in self._in_flight:
            (scheduled,) = batch.requests
            is_stale = scheduled.incarnation != scheduled.request.incarnation
            real.append((int(scheduled.request.request_id), scheduled.num_tokens, is_stale))
        modelled = []
        for flying in master.in_flight:
            entry = master.requests[flying.request]
            assert entry is not None
            modelled.append((flying.request, flying.num_tokens, flying.incarnation != entry.incarnation))
        assert real == modelled
