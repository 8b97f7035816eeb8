"""`Masters`: which masters are asked, what an error leads to, and which changes are sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from orca_contract.scheduler import SchedulerKnobs
from orca_operator import masters, names
from orca_operator.actions import PutScheduler, PutTopology
from orca_operator.master_client import MasterError
from orca_operator.masters import Masters
from orca_operator.observe import AdminPort, Observed
from support.orcadeployments import context, everything, pod, report

DEMO = context()
KEY = (DEMO.namespace, DEMO.name)
STEADY = everything(DEMO)
KNOBS = SchedulerKnobs(max_batch_size=7, token_budget=64, max_queue_depth=9)
PUT = PutScheduler(DEMO.revision, KNOBS)


class FakeExecutor:
    """Notes which tokens were asked for: made or read again (`fresh`), or only read."""

    def __init__(self) -> None:
        self.fresh: list[bool] = []
        self.read: list[bool] = []
        self.stored = "token"
        self._token = "token"

    def admin_token(self, _context: Any, fresh: bool = False) -> str:
        self.fresh.append(fresh)
        return self._known(fresh)

    def read_admin_token(self, _namespace: str, _name: str, fresh: bool = False) -> str:
        self.read.append(fresh)
        return self._known(fresh)

    def _known(self, fresh: bool) -> str:
        self._token = self.stored if fresh else self._token
        return self._token


class FakeKeeper:
    def __init__(self, **credentials: Any) -> None:
        self.credentials = credentials
        self.forgotten: list[str] = []

    def forget(self, secret: str) -> None:
        self.forgotten.append(secret)


class FakeClient:
    """Answers each call with the next answer: a report, or an error that is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[Any, ...]] = []

    async def state(self, *call: Any) -> Any:
        self.calls.append(call)
        answer = self.answers.pop(0)
        if isinstance(answer, MasterError):
            raise answer
        return answer

    put = state


class Scene:
    """Masters over fakes; `changes` counts the changes that took effect."""

    def __init__(self, *answers: Any, keeper: FakeKeeper | None = None) -> None:
        self.client, self.executor, self.keeper = FakeClient(*answers), FakeExecutor(), keeper or FakeKeeper()
        self.changes = 0
        self.masters = Masters(self.client, self.executor, self.keeper, self.count)  # type: ignore[arg-type]

    def count(self) -> None:
        self.changes += 1

    def observe(self, spec_is_valid: bool = True, observed: Observed = STEADY) -> Observed:
        found = DEMO if spec_is_valid else None
        return asyncio.run(self.masters.observe(KEY, observed.children, found))

    def send(self, *puts: PutScheduler, observed: Observed = STEADY) -> Observed:
        return asyncio.run(self.masters.send(puts, observed, DEMO))


@pytest.fixture
def by_tls(monkeypatch) -> str:
    """Return the Secret with the certificate of the master, which now speaks TLS."""
    monkeypatch.setattr(Observed, "admin_port", lambda *_: AdminPort("10.0.0.1:8081", "demo-master-tls"))
    return "demo-master-tls"


def test_the_report_of_a_running_master_is_observed():
    scene = Scene(report(DEMO))
    assert scene.observe().reports == {DEMO.revision: report(DEMO)}
    assert not scene.keeper.forgotten
    assert scene.executor.fresh == [False]


def test_without_a_valid_spec_no_token_is_made():
    scene = Scene(report(DEMO))
    assert scene.observe(spec_is_valid=False).reports
    assert (scene.executor.fresh, scene.executor.read) == ([], [False])


def test_a_master_with_tls_is_not_asked_before_there_are_credentials(by_tls):
    scene = Scene()
    assert not scene.observe().reports
    assert not scene.client.calls
    scene = Scene(report(DEMO), keeper=FakeKeeper(**{by_tls: "credentials"}))
    assert scene.observe().reports
    ((door,),) = scene.client.calls
    assert door.credentials == "credentials"


def test_an_error_makes_the_secret_be_read_again_and_a_401_the_token(by_tls):
    scene = Scene(MasterError("silence"), MasterError("no", 401), keeper=FakeKeeper(**{by_tls: "credentials"}))
    assert not scene.observe().reports
    assert (scene.keeper.forgotten, scene.executor.fresh) == ([by_tls], [False])
    assert not scene.observe().reports
    assert (scene.keeper.forgotten, scene.executor.fresh) == ([by_tls] * 2, [False, False, True])


@pytest.mark.parametrize("spec_is_valid", [True, False])
def test_a_replaced_token_is_used_in_the_same_pass(spec_is_valid):
    """Ready stays True, and an invalid spec does not lock the operator out."""
    scene = Scene(MasterError("no", 401), report(DEMO))
    scene.executor.stored = "another"
    observed = scene.observe(spec_is_valid)
    assert (set(observed.reports), observed.unauthorized) == ({DEMO.revision}, frozenset())
    assert [door.token for (door,) in scene.client.calls] == ["token", "another"]


@pytest.mark.parametrize("spec_is_valid", [True, False])
def test_a_master_that_rejects_the_stored_token_is_asked_once_a_pass(spec_is_valid):
    scene = Scene(MasterError("no", 401))
    assert scene.observe(spec_is_valid).unauthorized == {DEMO.revision}
    assert (scene.executor.fresh or scene.executor.read) == [False, True]


def test_the_secret_is_looked_for_while_a_master_starts_but_not_in_each_pass(monkeypatch):
    """Nor for a suspended deployment, which has a Deployment without pods."""
    without_pods = Observed(tuple(child for child in STEADY.children if child["kind"] != "Pod"))
    starting = Observed((*without_pods.children, pod(DEMO, names.MASTER, containerStatuses=[], podIP="")))
    scene = Scene()
    for _ in range(2):
        scene.observe(observed=without_pods)
        scene.observe(observed=starting)
    assert scene.executor.fresh == [False, True, False, False]
    monkeypatch.setattr(masters, "RESTORE_SECONDS", 0)
    scene.observe(observed=starting)
    assert scene.executor.fresh[-1]


def test_a_report_that_cannot_be_read_is_named():
    scene = Scene(MasterError("state.topology: wrong", 200))
    assert not scene.observe().reports
    assert scene.masters.not_applied == (f"master of revision {DEMO.revision}: state.topology: wrong",)


def test_a_change_that_takes_effect_is_announced_and_its_report_returned():
    after = report(DEMO).model_copy(update={"scheduler": KNOBS, "in_force": KNOBS})
    scene = Scene(after)
    assert scene.send(PUT).reports[DEMO.revision] == after
    ((_, route, body),) = scene.client.calls
    assert (route, body) == ("/scheduler", KNOBS)
    assert (scene.changes, scene.masters.not_applied) == (1, ())


def test_a_refused_change_is_sent_once_and_named_until_it_is_not_wanted_any_more():
    scene = Scene(MasterError("token_budget: too large", 400))
    problem = f"master of revision {DEMO.revision}: token_budget: too large"
    for _ in range(3):
        assert scene.send(PUT).reports[DEMO.revision] == report(DEMO)
        assert scene.masters.not_applied == (problem,)
    assert (len(scene.client.calls), scene.changes) == (1, 0)
    scene.send()
    assert scene.masters.not_applied == ()


def test_the_last_pipeline_may_not_leave_now_and_that_is_no_problem():
    """409: a request came after the report. The change is neither remembered as futile nor announced."""
    empty = PutTopology(DEMO.revision, report(DEMO, pipelines=0).topology)
    scene = Scene(*[MasterError("/topology: 409 the last pipeline stays", 409)] * 2)
    for calls in (1, 2):
        assert scene.send(empty).reports == STEADY.reports
        assert (len(scene.client.calls), scene.masters.not_applied, scene.changes) == (calls, (), 0)


def test_a_change_that_no_master_answered_is_sent_again():
    scene = Scene(MasterError("silence"), report(DEMO).model_copy(update={"scheduler": KNOBS, "in_force": KNOBS}))
    scene.send(PUT)
    assert (scene.changes, scene.masters.not_applied) == (0, (f"master of revision {DEMO.revision}: silence",))
    scene.send(PUT)
    assert (scene.changes, scene.masters.not_applied) == (1, ())
