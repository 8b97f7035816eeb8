"""Operator and master of different versions: nothing is refused, and no change is sent again and again.

Version 0 is frozen (support/version_0.py); versions after today's are messages with fields, reasons and states that
nobody knows yet.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Annotated, Any

import httpx
import jsonschema
import pytest
from orca_contract import routes
from orca_contract.message import VERSION, Message, Since, read
from orca_contract.state import EngineState, StateReport
from orca_contract.topology import Topology
from orca_master.endpoint.admin import create_admin_app
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.snapshot import EngineSnapshot
from orca_master.journal.status import no_journal
from orca_operator.actions import PutScheduler, PutTopology
from orca_operator.conditions import find_condition
from orca_operator.manifests import boot
from orca_operator.master_client import Door, MasterClient, MasterError
from orca_operator.metrics import Metrics
from orca_operator.observe import Observed
from orca_operator.plan import plan, unknown_to_master
from orca_operator.reconcile import Reconciler
from support import version_0
from support.api_server import Api
from support.orcadeployments import IMAGES, MINIMAL, context, everything, merged, report, view

SPEC = version_0.message("spec")
TOKEN = {"Authorization": "Bearer token"}


def puts(deployment: Any, said: StateReport) -> list[Any]:
    """Return what today's operator sends to a master with this report."""
    children = everything(deployment, 2).children
    actions = plan(deployment, view(Observed(children, {deployment.revision: said})))
    return [action for action in actions if isinstance(action, PutTopology | PutScheduler)]


# -- today's operator, a master of version 0 ---------------------------------------------------------------------------


def test_a_report_of_version_0_is_read_and_asks_for_nothing():
    said, unknown = read(StateReport, json.dumps(version_0.message("state")).encode())
    assert (said.contract_version, unknown) == (0, frozenset())
    assert puts(context(SPEC), said) == []


@pytest.mark.parametrize("changes", [{"replicas": 1}, {"replicas": 3}, {"scheduler": {"maxBatchSize": 7}}])
def test_a_master_of_version_0_takes_what_is_sent_and_is_then_left_alone(changes):
    said, _ = read(StateReport, json.dumps(version_0.message("state")).encode())
    wanted = context(merged(SPEC, **changes))
    sent = puts(wanted, said)
    assert len(sent) == 1
    for put in sent:
        name = "topology" if isinstance(put, PutTopology) else "scheduler"
        body = put.body.wire()
        jsonschema.validate(body, version_0.schema(name))
        answered, _ = read(StateReport, json.dumps({**version_0.message("state"), name: body}).encode())
        assert puts(wanted, answered) == []


def test_a_master_of_version_0_starts_from_what_is_written_for_it():
    data = boot.boot_config_map(context(SPEC), 2)["data"]
    assert json.loads(data["topology.json"]) == version_0.message("topology")


# -- an operator of version 0, today's master --------------------------------------------------------------------------


def engine(topology: Topology) -> Any:
    """Return what the admin port reads of an engine, and take the two changes."""

    async def apply(wanted: Topology) -> None:
        stub.engine.snapshot = stub.engine.snapshot._replace(topology=wanted)

    async def reconfigure(config: EngineConfig) -> None:
        stub.config = config

    master = SimpleNamespace(snapshot=EngineSnapshot(EngineState.SERVING, "", topology))
    stub = SimpleNamespace(
        engine=master,
        config=EngineConfig(),
        draining=False,
        idle=True,
        idle_seconds=7.0,
        apply=apply,
        reconfigure=reconfigure,
    )
    return stub


def call(method: str, path: str, *bodies: dict[str, Any], config: EngineConfig | None = None) -> list[httpx.Response]:
    """Answers of today's admin port, which begins with the topology of version 0."""

    async def all_of_them() -> list[httpx.Response]:
        token: Any = SimpleNamespace(matches="token".__eq__)
        stub = engine(Topology.model_validate(version_0.message("topology")))
        stub.config = config or stub.config
        app = create_admin_app(stub, token, no_journal)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://master", headers=TOKEN) as client:
            return [await client.request(method, path, json=body) for body in bodies]

    return asyncio.run(all_of_them())


def test_an_operator_of_version_0_finds_its_own_words_in_the_report():
    """It compares bodies as they are: one more field in the report, and it would send its topology in every pass."""
    topology, knobs = version_0.message("topology"), version_0.message("scheduler")
    (state,) = call("GET", routes.STATE, {})
    assert version_0.operator_puts(topology, knobs, state.json()) == []
    changed = {**knobs, "maxBatchSize": 7}
    (answer,) = call("PUT", routes.SCHEDULER, changed)
    assert version_0.operator_puts(topology, changed, answer.json()) == []
    fewer = {**topology, "pipelines": topology["pipelines"][:1]}
    (answer,) = call("PUT", routes.TOPOLOGY, fewer)
    assert version_0.operator_puts(fewer, knobs, answer.json()) == []


def test_an_operator_of_version_0_reads_todays_report():
    said = report(context(SPEC), pipelines=2, reason="EngineStalled", message="silent").wire()
    assert version_0.operator_reads(said)[1][1:] == ("Serving", 1, 0.0, "EngineStalled", "", "silent", None)


# -- a newer operator, today's master ----------------------------------------------------------------------------------


def test_todays_master_takes_what_it_knows_of_a_newer_operators_message(caplog):
    topology = version_0.message("topology")
    newer = {**topology, "quorum": 3, "pipelines": [{**entry, "weight": 2} for entry in topology["pipelines"]]}
    with caplog.at_level(logging.WARNING):
        answers = call("PUT", routes.TOPOLOGY, newer, newer)
    assert [(answer.status_code, answer.json()["topology"]) for answer in answers] == [(200, topology)] * 2
    (line,) = [record.getMessage() for record in caplog.records if "unknown to this version" in record.getMessage()]
    assert "'PipelineSpec.weight, Topology.quorum'" in line
    assert answers[0].json()["contractVersion"] == VERSION


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"pipelines": []}, "model: Field required"),
        ({**version_0.message("topology"), "communication": {"backend": "pigeon"}}, "communication.backend: "),
        ({**version_0.message("topology"), "communication": {"env": {"LD_PRELOAD": "x"}}}, "communication.env: "),
        ({**version_0.message("topology"), "pipelineParallelSize": 3}, "pipelines.0.workers: "),
    ],
)
def test_what_todays_master_cannot_do_is_refused_by_the_field(body, words):
    (answer,) = call("PUT", routes.TOPOLOGY, body)
    assert (answer.status_code, answer.json()["detail"].startswith(words)) == (422, True)


# -- today's operator, a newer or another master -----------------------------------------------------------------------


class ScriptedMaster(MasterClient):
    """A master that answers every third call for its state not at all, and changes by `react`."""

    def __init__(self, said: StateReport, react: Callable[[StateReport, Message], StateReport]) -> None:
        super().__init__()
        self.said = said
        self.asked = 0
        self.sent: list[Message] = []
        self._react = react

    async def state(self, door: Door) -> StateReport:
        self.asked += 1
        if self.asked % 3 == 0:
            raise MasterError("silence")
        return self.said

    async def put(self, door: Door, path: str, body: Message) -> StateReport:
        self.sent.append(body)
        self.said = self._react(self.said, body)
        return self.said


def reconciled(spec: dict[str, Any], master: ScriptedMaster, *stages: Callable[[Api], bool], revision: str = "") -> Api:
    """Run passes over a deployment in steady state until each stage holds; return the API server.

    `revision`: that of the existing pods, if it is not the one of today's hash.
    """
    api, present = Api(spec), context(spec)
    for child in everything(replace(present, revision=revision or present.revision), 1).children:
        api.objects[child["kind"], child["metadata"]["name"]] = child
    reconciler = Reconciler(api, IMAGES, master, Metrics())  # type: ignore[arg-type]
    api.reconciler = reconciler

    async def passes() -> None:
        for stage in stages:
            while not stage(api):
                reconciler.enqueue(("default", "demo"))
                await asyncio.sleep(0.02)
        await reconciler.close()

    asyncio.run(asyncio.wait_for(passes(), 60))
    return api


def deaf(said: StateReport, body: Message) -> StateReport:
    """Answer, and change nothing."""
    return said


def refusing(said: StateReport, body: Message) -> StateReport:
    raise MasterError("/scheduler: 422 what is maxBatchSize?", 422)


BUSY = merged(MINIMAL, tls={"mode": "off"}, scheduler={"maxBatchSize": 7})


@pytest.mark.parametrize(
    ("react", "words"),
    [(deaf, "still reports other values"), (refusing, "what is maxBatchSize?")],
    ids=["deaf", "refusing"],
)
def test_a_change_that_changed_nothing_is_not_sent_again(react, words):
    master = ScriptedMaster(report(context(merged(MINIMAL, tls={"mode": "off"}))), react)
    api = reconciled(BUSY, master, lambda api: len(master.sent) == 1, lambda api: master.asked >= 8)
    assert [body.wire()["maxBatchSize"] for body in master.sent] == [7]
    reasons = [find_condition(status, "FullyApplied")["reason"] for status in api.statuses]
    assert set(reasons) == {"NotApplied"}, "also after calls that the master did not answer"
    applied = find_condition(api.resource["status"], "FullyApplied")
    assert (applied["status"], applied["reason"], words in applied["message"]) == ("False", "NotApplied", True)


def test_a_change_is_sent_again_when_the_master_reports_something_else():
    """As after a restart: the master is back at what its ConfigMap said when the pod began."""
    master = ScriptedMaster(report(context(merged(MINIMAL, tls={"mode": "off"}))), deaf)

    def restart(api: Api) -> bool:
        old = report(context(merged(MINIMAL, tls={"mode": "off"}, scheduler={"maxBatchSize": 3})))
        master.said = old
        master._react = lambda said, body: said.model_copy(update={"scheduler": body, "in_force": body})
        return True

    api = reconciled(
        BUSY, master, lambda api: len(master.sent) == 1, lambda api: master.asked >= 4, restart,
        lambda api: api.condition("FullyApplied") == ("True", "Applied"),
    )  # fmt: skip
    assert len(master.sent) == 2
    assert api.condition("Ready") == ("True", "Serving")


def test_the_pods_of_an_operator_that_hashed_the_admission_stay():
    """The revision is the one that the operator of version 3 of the contract computed for this spec."""
    spec, former = merged(MINIMAL, tls={"mode": "off"}, scheduler={"admission": "paged"}), "1fbe2a"
    said = report(replace(context(spec), revision=former))
    master = ScriptedMaster(said.model_copy(update={"contract_version": 3}).known_to(3), deaf)
    api = reconciled(spec, master, lambda api: api.condition("Ready") == ("True", "Serving"), revision=former)
    assert api.resource["status"]["updateRevision"] == former != context(spec).revision
    deployments = {name for kind, name in api.objects if kind == "Deployment"}
    assert deployments == {f"demo-{former}-master"}
    applied = find_condition(api.resource["status"], "FullyApplied")
    assert (applied["status"], "scheduler.admission" in applied["message"]) == ("True", True)


def test_a_report_that_cannot_be_read_shows_in_the_status():
    class Mumbling(ScriptedMaster):
        async def state(self, door: Door) -> StateReport:
            raise MasterError("/state: pipelines: a list is expected", 200)

    master = Mumbling(report(context(merged(MINIMAL, tls={"mode": "off"}))), deaf)
    api = reconciled(BUSY, master, lambda api: api.condition("FullyApplied") == ("False", "NotApplied"))
    assert "pipelines: a list is expected" in find_condition(api.resource["status"], "FullyApplied")["message"]
    assert master.sent == []


def test_a_report_of_a_newer_master_is_read_and_asks_for_nothing(caplog):
    deployment = context(SPEC)
    newer = report(deployment, pipelines=2).wire()
    newer |= {"contractVersion": VERSION + 1, "state": "meditating", "weather": "fine"}
    newer["topology"] |= {"quorum": 3}
    newer["pipelines"][1] |= {"phase": "Napping", "lastFailure": {
        "at": 0.0, "reason": "Bored", "worker": "", "message": "m", "recoverySeconds": None, "depth": 1}}  # fmt: skip
    said, unknown = read(StateReport, json.dumps(newer).encode())
    assert unknown == {"StateReport.weather", "Topology.quorum", "FailureReport.depth"}
    assert puts(deployment, said) == []
    assert (said.pipelines[1].phase, said.pipelines[1].last_failure.reason) == ("Napping", "Bored")


def test_the_bound_of_the_expected_wait_is_changed_taken_back_and_unknown_to_older_masters():
    """An operator of version 0 does not know the field: its PUT and a report without a change have none."""
    knobs = version_0.message("scheduler")
    bounded = {**knobs, "maxExpectedWaitSeconds": 30}
    changed, refused, back = call("PUT", routes.SCHEDULER, bounded, {**knobs, "maxExpectedWaitSeconds": 0}, knobs)
    assert (changed.json()["scheduler"], back.json()["scheduler"]) == (bounded, knobs)
    assert (refused.status_code, refused.json()["detail"].startswith("maxExpectedWaitSeconds: ")) == (422, True)
    deployment = context(merged(SPEC, scheduler={"maxExpectedWaitSeconds": 30}))
    assert deployment.revision == context(SPEC).revision, "no pod restarts"
    old = report(context(SPEC), pipelines=2).model_copy(update={"contract_version": 1})
    assert puts(deployment, old) == []
    lost = unknown_to_master(deployment, Observed((), {deployment.revision: old}))
    assert [sentence.rpartition(" ")[2] for sentence in lost] == ["maxExpectedWaitSeconds"]


def test_timeouts_admission_and_policy_are_changed_taken_back_and_unknown_to_an_operator_of_version_0():
    knobs = version_0.message("scheduler")
    live = {"stallTimeoutSeconds": 30.0, "recoveryTimeoutSeconds": 90.0, "admission": "paged", "policy": "priority"}
    config = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=600.0)
    at_start, changed, back = call("PUT", routes.SCHEDULER, knobs, {**knobs, **live}, knobs, config=config)
    start = {"stallTimeoutSeconds": "automatic", "recoveryTimeoutSeconds": 600.0, "admission": "reserve",
             "policy": "fcfs", "maxExpectedWaitSeconds": 60.0, "drainTimeoutSeconds": 30.0}  # fmt: skip
    assert [answer.json()["scheduler"] for answer in (at_start, changed, back)] == [knobs, {**knobs, **live}, knobs]
    assert [answer.json()["inForce"] for answer in (at_start, changed, back)] == [
        {**knobs, **start}, {**knobs, **start, **live}, {**knobs, **start},
    ]  # fmt: skip
    (refused,) = call("PUT", routes.SCHEDULER, live)
    assert (refused.status_code, "recoveryTimeoutSeconds" in refused.json()["detail"]) == (409, True)
    for name in live:
        (refused,) = call("PUT", routes.SCHEDULER, {**live, name: -1}, config=config)
        assert (refused.status_code, refused.json()["detail"].startswith(name)) == (422, True)


def test_a_master_that_started_with_the_wanted_values_is_sent_nothing_and_one_before_version_4_only_what_it_knows():
    recovery = {"stallTimeoutSeconds": 30, "recoveryTimeoutSeconds": 90}
    wanted = context(merged(SPEC, scheduler={"admission": "paged"}, recoveryPolicy=recovery))
    assert wanted.revision == context(SPEC).revision, "no pod restarts"
    assert puts(wanted, report(wanted, pipelines=2)) == []
    (put,) = puts(wanted, report(context(SPEC), pipelines=2))
    assert put.body.wire().items() >= {**recovery, "admission": "paged"}.items()
    older = report(context(SPEC), pipelines=2).model_copy(update={"contract_version": 3}).known_to(3)
    assert puts(wanted, older) == []
    assert unknown_to_master(wanted, Observed((), {wanted.revision: older})) == []


# -- an operator with a new field, an older master ---------------------------------------------------------------------


class NewerTopology(Topology):
    """A topology with a field that no master of version 0 knows."""

    quorum: Annotated[int, Since(VERSION)] = 1


@pytest.mark.parametrize("quorum", [1, 3])
def test_an_older_master_is_sent_only_what_it_knows(monkeypatch, quorum):
    today = boot.topology

    def newer(deployment: Any, pipelines: int, kept: Any = None) -> NewerTopology:
        return NewerTopology(quorum=quorum, **dict(today(deployment, pipelines, kept)))

    monkeypatch.setattr(boot, "topology", newer)
    for changes, expected in (({}, []), ({"replicas": 1}, [1])):
        deployment = context(merged(SPEC, **changes))
        said = report(context(SPEC), pipelines=2)
        older = NewerTopology.model_validate(said.topology.wire(0))
        said = said.model_copy(update={"contract_version": 0, "topology": older})
        sent = puts(deployment, said)
        assert [len(put.body.pipelines) for put in sent] == expected
        for put in sent:
            jsonschema.validate(put.body.wire(), version_0.schema("topology"))
        lost = unknown_to_master(deployment, Observed((), {deployment.revision: said}))
        assert [sentence.rpartition(" ")[2] for sentence in lost] == ["quorum"] * (quorum != 1)
