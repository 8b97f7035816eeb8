"""`Masters`: which masters are asked, what an error leads to, and which changes are sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from orca_contract.scheduler import SchedulerKnobs
from orca_operator import masters, names
from orca_operator.actions import PutScheduler, PutTopology, Scale
from orca_operator.execute import Outcome
from orca_operator.manifests.context import Owner
from orca_operator.master_client import MasterError
from orca_operator.masters import Masters
from orca_operator.observe import AdminPort, Observed
from support.orcadeployments import MINIMAL, context, everything, merged, pod, report

DEMO = context()
OWNER = Owner(DEMO.name, DEMO.namespace, DEMO.uid)
STEADY = everything(DEMO)
KNOBS = SchedulerKnobs(max_batch_size=7, token_budget=64, max_queue_depth=9)
PUT = PutScheduler(DEMO.revision, KNOBS)
EMPTY = PutTopology(DEMO.revision, report(DEMO, pipelines=0).topology)
ZERO = merged(MINIMAL, autoscaling={"minReplicas": 0, "maxReplicas": 4})


class FakeExecutor:
    """Notes which tokens were asked for: made or read again (`fresh`), or only read."""

    def __init__(self) -> None:
        self.fresh: list[bool] = []
        self.read: list[bool] = []
        self.stored = "token"
        self.refusal = ""
        self.scaled: list[Scale] = []
        self._token = "token"

    def admin_token(self, _context: Any, fresh: bool = False) -> str:
        self.fresh.append(fresh)
        return self._known(fresh)

    def read_admin_token(self, _namespace: str, _name: str, fresh: bool = False) -> str:
        self.read.append(fresh)
        return self._known(fresh)

    def run(self, actions: list[Any], _owner: Owner, _observed: Observed) -> Outcome:
        """Return calls to masters as a real one does; `refusal` is that of every other action."""
        puts = [action for action in actions if isinstance(action, PutTopology)]
        self.scaled += [action for action in actions if isinstance(action, Scale)]
        return Outcome(puts=puts, failures=[self.refusal] if self.refusal else [])

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
        return asyncio.run(self.masters.observe(OWNER, observed.children, found))

    def send(self, *puts: PutScheduler | PutTopology, observed: Observed = STEADY) -> Observed:
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


def test_a_backlog_is_remembered_for_a_while(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(masters.time, "monotonic", lambda: now[0])
    silent = MasterError("ConnectTimeout")
    scene = Scene(report(DEMO).model_copy(update={"has_backlog": True}), silent, silent)
    assert scene.observe().backlogs == frozenset(), "the report has it"
    assert scene.observe().backlogs == {DEMO.revision}
    now[0] += masters.BACKLOG_SECONDS
    assert scene.observe().backlogs == frozenset()


def test_an_error_counts_when_the_master_has_been_silent_for_some_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(masters.time, "monotonic", lambda: now[0])
    silent = MasterError("ConnectTimeout")
    scene = Scene(silent, silent, silent, report(DEMO), silent, report(DEMO))
    seen = []
    for _ in range(6):
        seen.append(scene.observe().unanswered)
        now[0] += masters.SILENCE_SECONDS / 2
    assert seen == [{}, {}, {DEMO.revision: "ConnectTimeout"}, {}, {}, {}]


def test_the_time_before_a_pod_is_ready_is_no_silence(monkeypatch):
    """A pod has an address as soon as it starts; its master may load a large model before it listens."""
    now = [0.0]
    monkeypatch.setattr(masters.time, "monotonic", lambda: now[0])
    workers = tuple(child for child in STEADY.children if child != pod(DEMO, names.MASTER, ready=True))
    starting = Observed((*workers, pod(DEMO, names.MASTER)))
    scene = Scene(*[MasterError("ConnectError")] * 4)
    seen = []
    for observed in (starting, starting, STEADY, STEADY):
        seen.append(scene.observe(observed=observed).unanswered)
        now[0] += masters.SILENCE_SECONDS
    assert seen == [{}, {}, {}, {DEMO.revision: "ConnectError"}]


@pytest.mark.parametrize("status", [200, 403, 500, 503])
def test_an_answer_that_is_no_report_counts_as_silence(monkeypatch, status):
    monkeypatch.setattr(masters, "SILENCE_SECONDS", 0.0)
    observed = Scene(MasterError(f"/state: {status}", status)).observe()
    assert (observed.unanswered, observed.unauthorized) == ({DEMO.revision: f"/state: {status}"}, frozenset())


def test_a_master_for_which_the_operator_has_no_certificate_counts_as_silent(monkeypatch, by_tls):
    monkeypatch.setattr(masters, "SILENCE_SECONDS", 0.0)
    assert "the operator has no certificate" in Scene().observe().unanswered[DEMO.revision]


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
    """423: a request came after the report. The change is neither remembered as futile nor announced."""
    scene = Scene(*[MasterError("/topology: 423 the last pipeline stays", 423)] * 2)
    for calls in (1, 2):
        assert scene.send(EMPTY).reports == STEADY.reports
        assert (len(scene.client.calls), scene.masters.not_applied, scene.changes) == (calls, (), 0)


def test_another_refusal_of_an_empty_topology_is_named():
    problem = "/topology: 409 `pipelines` can be empty only after one of them has served"
    scene = Scene(MasterError(problem, 409))
    for _ in range(2):
        scene.send(EMPTY)
        assert scene.masters.not_applied == (f"master of revision {DEMO.revision}: {problem}",)
    assert len(scene.client.calls) == 1


BACKLOG = report(DEMO, pipelines=0).model_copy(update={"has_backlog": True})


@pytest.mark.parametrize("found", [context(ZERO), None], ids=["the spec is valid", "the spec is rejected"])
def test_a_master_whose_requests_wait_gets_a_pipeline_before_the_pass_plans(found):
    awake = report(DEMO, "Connecting").model_copy(update={"has_backlog": True})
    scene = Scene(BACKLOG, awake)
    observed = asyncio.run(scene.masters.observe(OWNER, without_worker_pods(), found))
    assert observed.reports == {DEMO.revision: awake}
    assert [each.replicas for each in scene.executor.scaled] == [1]
    assert (scene.masters.not_woken, scene.changes) == ((), 1), "the next pass comes at once"


def test_what_stops_a_wake_up_is_named_and_stops_nothing_else():
    scene = Scene(BACKLOG, MasterError("silence"), BACKLOG, report(DEMO, "Connecting"))
    scene.executor.refusal = "StatefulSet demo is not scaled to 1: quota"
    observed = asyncio.run(scene.masters.observe(OWNER, without_worker_pods(), None))
    assert observed.reports == {DEMO.revision: BACKLOG}
    assert scene.masters.not_woken == (scene.executor.refusal, f"master of revision {DEMO.revision}: silence")
    scene.executor.refusal = ""
    asyncio.run(scene.masters.observe(OWNER, without_worker_pods(), None))
    assert scene.masters.not_woken == ()


@pytest.mark.parametrize(
    ("changes", "woken"), [({"suspend": True}, False), ({"autoscaling": None, "replicas": 0}, True)]
)
def test_a_suspended_deployment_wakes_no_master_and_replicas_0_answers_accepted_requests_first(changes, woken):
    scene = Scene(BACKLOG, BACKLOG)
    found = context(merged(ZERO, **changes))
    asyncio.run(scene.masters.observe(OWNER, without_worker_pods(), found))
    assert len(scene.client.calls) == (2 if woken else 1), "it is only asked, or gets a topology, too"


def without_worker_pods() -> tuple[Any, ...]:
    """Return the children of a deployment that sleeps."""
    return tuple(
        {**child, "spec": {**child["spec"], "replicas": 0}} if child["kind"] == "StatefulSet" else child
        for child in STEADY.children
        if child["kind"] != "Pod" or names.MASTER in child["metadata"]["name"]
    )


def test_a_change_that_no_master_answered_is_sent_again():
    scene = Scene(MasterError("silence"), report(DEMO).model_copy(update={"scheduler": KNOBS, "in_force": KNOBS}))
    scene.send(PUT)
    assert (scene.changes, scene.masters.not_applied) == (0, (f"master of revision {DEMO.revision}: silence",))
    scene.send(PUT)
    assert (scene.changes, scene.masters.not_applied) == (1, ())
