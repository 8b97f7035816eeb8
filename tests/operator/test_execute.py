"""What the executor writes, skips and leaves alone, over an API server that is a dictionary.

The real one is in tests/cluster; this is for what it cannot be made to do there: events that come late, and refusals.
"""

from __future__ import annotations

from typing import Any

import pytest
from orca_contract.reasons import Reason
from orca_contract.scheduler import SchedulerKnobs
from orca_operator import names, repairs
from orca_operator.actions import Apply, ApplyAutoscaler, Check, Delete, ForceDelete, PutScheduler, Replace, Scale
from orca_operator.cluster import ClusterError, KindNotServedError
from orca_operator.execute import NO_DRY_RUN, Executor
from orca_operator.manifests import services
from orca_operator.manifests.workers import worker_stateful_sets
from orca_operator.observe import Observed, version
from orca_operator.plan import plan
from orca_operator.scaling import wanted_autoscaler
from orca_operator.validation import InvalidSpecError, RejectedError
from support.orcadeployments import MINIMAL, NOW, UID, context, merged, pod, view
from support.variants import one_short


class Server:
    """Objects by kind and name, with generations; counts writes and dry runs."""

    def __init__(self, missing: tuple[str, ...] = ()) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.missing = missing
        self.writes = 0
        self.checks = 0
        self.events: list[tuple[str, str]] = []
        self.refusal: ClusterError | None = None
        self.refused_kind = "StatefulSet"

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return self.objects.get((kind, name))

    def apply(self, manifest: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
        kind, metadata = manifest["kind"], manifest["metadata"]
        if kind in self.missing:
            raise KindNotServedError(kind)
        if self.refusal is not None and kind == self.refused_kind:
            raise self.refusal
        if dry_run:
            self.checks += 1
            return manifest
        self.writes += 1
        before = self.objects.get((kind, metadata["name"]))
        generation = before["metadata"].get("generation", 0) if before else 0
        content = {key: value for key, value in manifest.items() if key != "metadata"}
        same = before is not None and content == {key: value for key, value in before.items() if key != "metadata"}
        live = {**metadata, "uid": f"{kind}-{metadata['name']}", "generation": generation + (not same)}
        self.objects[kind, metadata["name"]] = {**content, "metadata": live}
        return self.objects[kind, metadata["name"]]

    def scale(self, kind: str, namespace: str, name: str, replicas: int) -> None:
        if self.refusal is not None and kind == self.refused_kind:
            raise self.refusal
        live = self.objects[kind, name]
        metadata = {**live["metadata"], "generation": live["metadata"]["generation"] + 1}
        self.objects[kind, name] = {**live, "metadata": metadata, "spec": {**live["spec"], "replicas": replicas}}

    def merge(self, kind: str, namespace: str, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        live = self.objects[kind, name]
        self.objects[kind, name] = {**live, "metadata": {**live["metadata"], **fields["metadata"]}}
        return self.objects[kind, name]

    def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        if self.refusal is not None and self.refused_kind == name:
            raise self.refusal
        self.writes += 1
        if self.objects[kind, name]["metadata"]["uid"] == uid:
            del self.objects[kind, name]

    def force_delete(self, namespace: str, pod: str, uid: str) -> bool:
        if self.refusal is not None and self.refused_kind == "Pod":
            raise self.refusal
        self.writes += 1
        return self.objects.pop(("Pod", pod), {"metadata": {"uid": ""}})["metadata"]["uid"] == uid

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        if manifest["kind"] == "Event":
            self.events.append((manifest["reason"], manifest["message"]))
            return manifest
        assert (manifest["kind"], manifest["metadata"]["name"]) not in self.objects
        data = {"token": "dG9rZW4="}
        metadata = {**manifest["metadata"], "uid": "secret", "resourceVersion": "1"}
        self.objects["Secret", manifest["metadata"]["name"]] = {**manifest, "metadata": metadata, "data": data}
        return manifest


SPEC = merged(MINIMAL, replicas=2, podDisruptionBudget={"enabled": True}, monitoring={"enabled": True})
FULL = context(SPEC)
EDITED = context(merged(SPEC, service={"type": "NodePort"}))
LATE = ("PodDisruptionBudget", "PodMonitor")


def observed(server: Server) -> Observed:
    """Return what watches have shown so far."""
    return Observed(tuple(found for (kind, _), found in server.objects.items() if kind not in LATE))


def run(executor: Executor, server: Server, found=FULL):
    seen = observed(server)
    return executor.run(plan(found, view(seen)), found, seen)


def test_a_second_pass_writes_nothing_also_where_events_are_late():
    server = Server()
    executor = Executor(server)
    assert run(executor, server).writes == len(server.objects) >= 10
    assert {kind for kind, _ in server.objects} >= set(LATE)
    before = server.writes
    for _ in range(3):
        assert run(executor, server).writes == 0
    assert server.writes == before


def test_after_a_restart_everything_is_applied_once_and_nothing_changes():
    server = Server()
    run(Executor(server), server)
    generations = {key: found["metadata"]["generation"] for key, found in server.objects.items()}
    restarted = Executor(server)
    assert run(restarted, server).writes == 0
    assert {key: found["metadata"]["generation"] for key, found in server.objects.items()} == generations
    before = server.writes
    run(restarted, server)
    assert server.writes == before


@pytest.mark.parametrize("change", [{"uid": "another"}, {"labels": {"a": "b"}}], ids=["replaced", "labels"])
def test_a_change_without_a_new_generation_is_written_again(change):
    """`kubectl replace --force` creates another object, again of generation 1, and labels have no generation."""
    server = Server()
    executor = Executor(server)
    run(executor, server)
    place = next(place for place in server.objects if place[0] == "PodDisruptionBudget")
    before = server.objects[place]
    spec = {**before["spec"], "maxUnavailable": 9} if "uid" in change else before["spec"]
    server.objects[place] = {**before, "metadata": {**before["metadata"], **change}, "spec": spec}
    assert run(executor, server).writes == 1
    after = server.objects[place]
    assert (after["spec"], after["metadata"]["labels"]) == (before["spec"], before["metadata"]["labels"])


def test_what_somebody_changed_is_written_again():
    server = Server()
    executor = Executor(server)
    run(executor, server)
    service = server.objects["Service", "demo"]
    service["spec"] = {"selector": {"a": "b"}}
    service["metadata"] = {**service["metadata"], "generation": 2}
    assert run(executor, server).writes == 1
    assert server.objects["Service", "demo"]["spec"]["selector"] == names.selector("demo", names.MASTER)


@pytest.mark.parametrize("deleted", one_short([False, True]))
def test_what_another_client_keeps_changing_is_restored_ever_less_often(deleted, monkeypatch):
    """Every 5 s for two hours: the first repairs are immediate; a changed manifest is written at once all the same."""
    now = [0.0]
    monkeypatch.setattr(repairs, "monotonic", lambda: now[0])
    server = Server()
    executor = Executor(server)
    run(executor, server)
    writes, disputed = [], []
    for _ in range(1440):
        service = server.objects.get(("Service", "demo"))
        if deleted:
            server.objects.pop(("Service", "demo"), None)
        elif service is not None and "changed" not in service:
            metadata = {**service["metadata"], "generation": service["metadata"]["generation"] + 1}
            server.objects["Service", "demo"] = {**service, "metadata": metadata, "changed": True}
        outcome = run(executor, server)
        writes.append(outcome.writes)
        disputed.append(outcome.failures)
        now[0] += 5
    assert writes[:3] == [1, 1, 1]
    assert writes[3:5] == [0, 1], "after 10 s"
    assert sum(writes[720:]) == 6, "every ten minutes"
    assert disputed[1:3] == [[], disputed[-1]]
    assert disputed[-1][0].startswith("Service demo: another client keeps changing it")
    assert run(executor, server, EDITED).writes >= 1
    assert server.objects["Service", "demo"]["spec"]["type"] == "NodePort"


def test_the_operators_own_change_of_replicas_is_no_dispute():
    server = Server()
    executor = Executor(server)
    for _ in range(10):
        run(executor, server)
        stateful_set = next(found for (kind, _), found in server.objects.items() if kind == "StatefulSet")
        outcome = executor.run([Scale(stateful_set, 0)], SCALED, observed(server))
        assert (outcome.writes, outcome.failures) == (1, [])
    assert run(executor, server).failures == []


def test_an_event_that_is_late_is_no_repair():
    """The operator sees its own object as it was before the last write, again and again."""
    server = Server()
    executor = Executor(server)
    run(executor, server)
    stale = observed(server)
    run(executor, server, EDITED)
    for _ in range(10):
        assert executor.run(plan(EDITED, view(stale)), EDITED, stale).failures == []


def test_kinds_that_are_not_served_are_skipped():
    server = Server(missing=LATE)
    outcome = run(Executor(server), server)
    assert sorted(outcome.skipped) == sorted(LATE)
    assert ("Service", "demo") in server.objects


@pytest.mark.parametrize(("status", "error"), [(422, InvalidSpecError), (403, InvalidSpecError), (500, ClusterError)])
def test_refusals_are_the_users_and_failures_are_tried_again(status, error):
    server = Server()
    server.refusal = ClusterError(status, "in its own words")
    with pytest.raises(error, match="in its own words"):
        run(Executor(server), server)


@pytest.mark.parametrize(
    ("status", "words", "reason"),
    [
        (403, 'services "s" is forbidden: User "orca" cannot patch resource "services"', Reason.OPERATOR_FORBIDDEN),
        (403, 'services "s" is forbidden: exceeded quota: small, requested: services=1', Reason.QUOTA_EXCEEDED),
        (403, "pods is forbidden: failed quota: q: must specify limits.memory for: fetch-model", Reason.QUOTA_EXCEEDED),
        (403, 'admission webhook "a.example.com" denied the request: exceptional', Reason.INVALID_SPEC),
        (422, "spec.x: Invalid value: exceeded quota", Reason.INVALID_SPEC),
        (500, "failed to create typed patch object (…): .spec.x: field not declared in schema", Reason.INVALID_SPEC),
    ],
)
def test_a_rejection_has_the_reason_of_its_cause(status, words, reason):
    server = Server()
    server.refusal = ClusterError(status, words)
    with pytest.raises(RejectedError, match=r"^StatefulSet ") as rejected:
        run(Executor(server), server)
    assert rejected.value.reason is reason
    assert words in str(rejected.value)


def test_a_new_revision_is_checked_whole_before_anything_is_written():
    """The StatefulSet is refused: also what comes before it is not written, and what was accepted is not sent again."""
    server = Server()
    executor = Executor(server)
    server.refusal = ClusterError(422, "toleration: unknown effect")
    for _ in range(2):
        with pytest.raises(InvalidSpecError, match="unknown effect"):
            run(executor, server)
    assert (server.writes, server.objects) == (0, {})
    accepted = server.checks
    server.refusal = None
    run(executor, server)
    checks = [action for action in plan(FULL, view(Observed())) if isinstance(action, Check)]
    assert server.checks == len(checks) > accepted > 0
    assert ("StatefulSet", names.partition("demo", FULL.revision, 0)) in server.objects


def test_nothing_is_written_if_the_server_drops_a_field_that_the_pods_need():
    class Forgetful(Server):
        def apply(self, manifest: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
            answer = super().apply(manifest, dry_run)
            if manifest["kind"] != "StatefulSet":
                return answer
            template = answer["spec"]["template"]
            pod = {key: value for key, value in template["spec"].items() if key != "affinity"}
            return {**answer, "spec": {**answer["spec"], "template": {**template, "spec": pod}}}

    placed = context(merged(MINIMAL, worker={"placement": {"policy": "colocate"}}))
    server, actions = Forgetful(), plan(placed, view(Observed()))
    with pytest.raises(InvalidSpecError, match=r"drops spec\.template\.spec\.affinity\..*matchLabelKeys"):
        Executor(server).run(actions, placed, Observed())  # type: ignore[arg-type]
    assert (server.writes, server.objects) == (0, {})


def test_a_webhook_that_dry_runs_do_not_reach_is_not_the_users_mistake():
    server = Server()
    server.refusal = ClusterError(400, 'admission webhook "a.example.com" does not support dry run')
    (stateful_set,) = worker_stateful_sets(FULL)
    Executor(server).run([Check(stateful_set)], FULL, Observed())
    server.refusal = ClusterError(400, 'admission webhook "a.example.com" denied the request')
    with pytest.raises(InvalidSpecError, match="denied"):
        Executor(server).run([Check(stateful_set)], FULL, Observed())


def test_a_check_neither_takes_nor_deletes_what_is_there():
    server = Server()
    manifest = services.client_service(FULL)
    for labels, error in ((names.labels("demo"), ""), ({}, "is not ORCA's")):
        server.objects["Service", "demo"] = theirs = foreign("Service", "demo", labels, "earlier")
        if error:
            with pytest.raises(InvalidSpecError, match=error):
                Executor(server).run([Check(manifest)], FULL, Observed())
        else:
            Executor(server).run([Check(manifest)], FULL, Observed())
        assert server.objects["Service", "demo"] is theirs
    assert server.checks == 0


def test_scaling_changes_the_replicas_and_nothing_else():
    server = Server()
    executor = Executor(server)
    run(executor, server)
    place = ("StatefulSet", names.partition("demo", FULL.revision, 0))
    before = server.objects[place]
    executor.run([Scale(before, 7)], FULL, observed(server))
    after = server.objects[place]
    assert after["spec"] == {**before["spec"], "replicas": 7} != before["spec"]


def foreign(kind: str, name: str, labels: dict[str, str], uid: str) -> dict[str, Any]:
    owner = {"kind": "OrcaDeployment", "uid": uid, "controller": True}
    metadata = {"name": name, "uid": f"old-{name}", "generation": 1, "labels": labels, "ownerReferences": [owner]}
    return {"kind": kind, "metadata": metadata, "data": {"token": "b2xk"}}


def test_what_an_earlier_deployment_of_the_name_left_goes_first():
    server = Server()
    server.objects["Service", "demo"] = foreign("Service", "demo", names.labels("demo"), "earlier")
    server.objects["Secret", "demo-admin"] = foreign("Secret", "demo-admin", names.labels("demo"), "earlier")
    executor = Executor(server)
    run(executor, server)
    assert ("Service", "demo") not in server.objects, "deleted; made anew in the next pass"
    run(executor, server)
    (owner,) = server.objects["Service", "demo"]["metadata"]["ownerReferences"]
    assert owner["uid"] == UID
    assert executor.admin_token(FULL) != "old"
    assert server.objects["Secret", "demo-admin"]["metadata"]["uid"] == "secret"


@pytest.mark.parametrize(
    "deployment",
    [{"uid": UID, "deletionTimestamp": "2026-01-01T00:00:00Z"}, {"uid": "another"}, None],
    ids=["ends", "has a successor", "is gone"],
)
def test_a_deployment_that_is_deleted_adopts_nothing(deployment):
    """The garbage collector takes the owner from the children before the OrcaDeployment is gone."""
    server = Server()
    if deployment is not None:
        server.objects[names.KIND, "demo"] = {"metadata": deployment}
    orphan = foreign("Service", "demo", names.labels("demo"), "")
    orphan["metadata"] |= {"ownerReferences": [], "resourceVersion": "1"}
    server.objects["Service", "demo"] = orphan
    with pytest.raises(ClusterError, match="is deleted: nothing is adopted"):
        Executor(server).run([Apply(services.client_service(FULL))], FULL, Observed())
    server.objects[names.KIND, "demo"] = {"metadata": {"uid": UID}}
    Executor(server).run([Apply(services.client_service(FULL))], FULL, Observed())
    assert server.objects["Service", "demo"]["metadata"]["ownerReferences"] == [FULL.reference]


@pytest.mark.parametrize("kind", ["Service", "Secret"])
def test_what_is_somebody_elses_stays(kind):
    server, name = Server(), "demo" if kind == "Service" else "demo-admin"
    theirs = {"kind": kind, "metadata": {"name": name, "uid": "theirs", "generation": 1}}
    server.objects[kind, name] = theirs
    executor = Executor(server)
    with pytest.raises(InvalidSpecError, match=f"a {kind} named {name} exists and is not ORCA's"):
        executor.admin_token(FULL) if kind == "Secret" else run(executor, server)
    assert server.objects[kind, name] is theirs


def test_a_deleted_admin_secret_is_restored_with_the_token_that_the_master_has():
    server = Server()
    executor = Executor(server)
    executor.admin_token(FULL)
    before = executor.admin_token(FULL, fresh=True)
    del server.objects["Secret", "demo-admin"]
    assert executor.admin_token(FULL) == before
    assert ("Secret", "demo-admin") not in server.objects
    assert executor.admin_token(FULL, fresh=True) == before
    assert ("Secret", "demo-admin") in server.objects


@pytest.mark.parametrize("data", [None, {}, {"other": "eA=="}, {"token": ""}, {"token": "/w=="}, {"token": "YQBi"}])
def test_an_admin_secret_without_a_usable_token_gets_the_known_one_back(data):
    """Such a token must not end the pass: every pass of a deployment that starts reads it."""
    server = Server()
    executor = Executor(server)
    before = executor.admin_token(FULL)
    place = ("Secret", "demo-admin")
    server.objects[place] = {**server.objects[place], "data": data}
    assert executor.read_admin_token("default", "demo", fresh=True) == before
    assert executor.admin_token(FULL, fresh=True) == before
    assert server.objects[place]["stringData"] == {"token": before}
    assert server.writes == 1


def test_a_token_that_could_not_be_stored_is_not_used(monkeypatch):
    server = Server()
    executor = Executor(server)

    def refuse(_manifest: Any) -> None:
        raise ClusterError(0, "silence")

    with monkeypatch.context() as silence:
        silence.setattr(server, "create", refuse)
        with pytest.raises(ClusterError):
            executor.admin_token(FULL)
    executor.admin_token(FULL)
    assert ("Secret", "demo-admin") in server.objects


def test_a_token_is_read_as_the_master_reads_it():
    """Without the newline at its end, which no HTTP header can carry."""
    server = Server()
    executor = Executor(server)
    executor.admin_token(FULL)
    place = ("Secret", "demo-admin")
    server.objects[place] = {**server.objects[place], "data": {"token": "YWJjCg=="}}
    assert executor.read_admin_token("default", "demo", fresh=True) == "abc"
    assert executor.admin_token(FULL, fresh=True) == "abc"
    assert server.writes == 0


def test_deletions_are_of_that_very_object():
    server = Server()
    executor = Executor(server)
    run(executor, server)
    policy = {**server.objects["NetworkPolicy", "demo-master"]}
    policy["metadata"] = {**policy["metadata"], "uid": "another"}
    executor.run([Delete(policy)], FULL, observed(server))
    assert ("NetworkPolicy", "demo-master") in server.objects
    assert isinstance(plan(FULL, view(observed(server)))[0], Apply)


@pytest.mark.parametrize("status", [403, 500, 0])
def test_a_child_that_is_not_deleted_is_named_and_ends_no_pass(status):
    """The calls to masters and the status come after the deletions."""
    server = Server()
    executor = Executor(server)
    run(executor, server)
    policy = server.objects["NetworkPolicy", "demo-master"]
    server.refusal, server.refused_kind = ClusterError(status, "denied"), "demo-master"
    put = PutScheduler(FULL.revision, SchedulerKnobs())
    outcome = executor.run([Delete(policy), put], FULL, observed(server))
    assert (outcome.puts, outcome.writes) == ([put], 0)
    assert outcome.failures == ["NetworkPolicy demo-master is not deleted: denied"]


def test_a_rendering_that_is_not_deleted_ends_the_pass():
    """It is immutable: its successor of the same name would be rejected."""
    server = Server()
    executor = Executor(server)
    run(executor, server)
    name = names.revision("demo", FULL.revision)
    server.refusal, server.refused_kind = ClusterError(500, "denied"), name
    with pytest.raises(ClusterError, match=f"^ControllerRevision {name} is not deleted: denied$"):
        executor.run([Delete(server.objects["ControllerRevision", name])], FULL, observed(server))


# -- the autoscaler ----------------------------------------------------------------------------------------------------

SCALED = context(merged(MINIMAL, autoscaling={"maxReplicas": 4}))
(HPA,) = wanted_autoscaler(SCALED)


@pytest.mark.parametrize("status", [403, 409, 422, 500, 0])
def test_a_rejected_autoscaler_is_reported_and_the_pass_goes_on(status):
    server = Server()
    server.refusal, server.refused_kind = ClusterError(status, "denied"), "HorizontalPodAutoscaler"
    after = Apply(services.client_service(SCALED))
    executor = Executor(server)
    outcome = executor.run([ApplyAutoscaler(HPA), after], SCALED, Observed())
    assert outcome.autoscaler_refusal == "HorizontalPodAutoscaler demo: denied"
    assert list(server.objects) == [("Service", "demo")]
    server.refusal = None
    assert executor.run([ApplyAutoscaler(HPA)], SCALED, Observed()).autoscaler_refusal == ""
    assert ("HorizontalPodAutoscaler", "demo") in server.objects


def test_a_users_own_hpa_of_the_same_name_is_left_alone():
    server = Server()
    own = {"kind": "HorizontalPodAutoscaler", "metadata": {"name": "demo", "uid": "x", "generation": 1}, "spec": {}}
    server.objects["HorizontalPodAutoscaler", "demo"] = own
    outcome = Executor(server).run([ApplyAutoscaler(HPA)], SCALED, Observed())
    assert "exists and is not ORCA's" in outcome.autoscaler_refusal
    assert server.objects["HorizontalPodAutoscaler", "demo"] is own


def test_an_autoscaler_that_the_cluster_does_not_serve_is_skipped():
    outcome = Executor(Server(missing=("HorizontalPodAutoscaler",))).run([ApplyAutoscaler(HPA)], SCALED, Observed())
    assert (outcome.skipped, outcome.autoscaler_refusal) == (["HorizontalPodAutoscaler"], "")


def test_the_status_of_an_hpa_is_no_change_of_it():
    """An HPA has no generation, and its status changes with every value of a metric."""
    first = {**HPA, "metadata": {**HPA["metadata"], "resourceVersion": "1"}, "status": {"desiredReplicas": 1}}
    second = {**first, "metadata": {**first["metadata"], "resourceVersion": "2"}, "status": {"desiredReplicas": 2}}
    assert version(first) == version(second)
    edited = {**second, "spec": {**second["spec"], "maxReplicas": 9}}
    relabelled = {**second, "metadata": {**second["metadata"], "labels": {}}}
    assert len({version(second), version(edited), version(relabelled)}) == 3


def test_owners_that_another_client_removes_are_a_change():
    """They do not change the generation."""
    owned = {**HPA, "metadata": {**HPA["metadata"], "generation": 1, "ownerReferences": [{"uid": "u"}]}}
    orphan = {**owned, "metadata": {**owned["metadata"], "ownerReferences": []}}
    assert version(owned) != version(orphan)


@pytest.mark.parametrize("status", [403, 409, 422, 500, 0])
def test_a_rejected_optional_object_is_named_and_the_pass_goes_on(status):
    server = Server()
    server.refusal, server.refused_kind = ClusterError(status, "denied"), "PodDisruptionBudget"
    outcome = run(Executor(server), server)
    assert outcome.failures == ["PodDisruptionBudget demo: denied"]
    assert {"Deployment", "StatefulSet", "PodMonitor"} <= {kind for kind, _ in server.objects}


def test_no_pod_of_a_new_revision_starts_without_its_network_policy():
    """The dry run finds nothing where a webhook supports none."""
    server = Server()

    def apply(manifest: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
        if manifest["kind"] == "NetworkPolicy":
            raise ClusterError(400, f'webhook "w" {NO_DRY_RUN}') if dry_run else ClusterError(403, "denied")
        return Server.apply(server, manifest, dry_run)

    server.apply = apply  # type: ignore[method-assign]
    with pytest.raises(InvalidSpecError, match=r"^NetworkPolicy demo-master: denied$"):
        run(Executor(server), server)
    assert not {"Deployment", "StatefulSet"} & {kind for kind, _ in server.objects}


# -- pods on lost nodes ------------------------------------------------------------------------------------------------


def forced() -> tuple[Server, ForceDelete]:
    server, lost = Server(), pod(FULL)
    server.objects["Pod", lost["metadata"]["name"]] = lost
    return server, ForceDelete(lost, "n1", NOW)


def test_a_forced_deletion_is_reported_once():
    server, deletion = forced()
    executor = Executor(server)
    outcome = executor.run([deletion], FULL, Observed())
    assert (outcome.writes, outcome.failures) == (1, [])
    late = executor.run([deletion], FULL, Observed())  # the watch has not told of the deletion yet
    assert (late.writes, late.failures) == (0, [])
    name = deletion.pod["metadata"]["name"]
    assert server.events == [("PodForceDeleted", f"{name}: node n1 is lost since 2026-01-01T12:00:00Z")]


def test_a_forced_deletion_is_reported_although_the_pass_fails_later():
    server, deletion = forced()
    server.refusal, server.refused_kind = ClusterError(422, "wrong"), "Service"
    with pytest.raises(InvalidSpecError, match="wrong"):
        Executor(server).run([deletion, Apply(services.client_service(FULL))], FULL, Observed())
    assert [reason for reason, _ in server.events] == ["PodForceDeleted"]


def test_a_refused_deletion_is_named_and_ends_no_pass():
    server, deletion = forced()
    server.refusal, server.refused_kind = ClusterError(403, 'pods "x" is forbidden'), "Pod"
    outcome = Executor(server).run([deletion, Apply(services.client_service(FULL))], FULL, Observed())
    name = deletion.pod["metadata"]["name"]
    assert outcome.failures == [f'{name} on the lost node n1: pods "x" is forbidden']
    assert server.events == []
    assert outcome.writes == 1, "the Service"
    server.refusal = ClusterError(500, "failed calling webhook")
    outcome = Executor(server).run([deletion], FULL, Observed())
    assert outcome.failures == [f"{name} on the lost node n1: failed calling webhook"]


# -- pods of pipelines without progress --------------------------------------------------------------------------------


def test_all_pods_of_a_pipeline_are_deleted_although_the_deletion_of_one_is_refused():
    server, pods = Server(), (pod(FULL), pod(FULL, partition=1), pod(FULL, partition=2))
    for each in pods:
        server.objects["Pod", each["metadata"]["name"]] = each
    first = pods[0]["metadata"]["name"]
    server.refusal, server.refused_kind = ClusterError(500, "failed calling webhook"), first
    outcome = Executor(server).run([Replace("abc-0", pods, NOW)], FULL, Observed())
    assert list(server.objects) == [("Pod", first)]
    assert outcome.failures == [f"{first} of pipeline abc-0: failed calling webhook"]
    assert outcome.writes == 2
    assert server.events == [
        ("PipelineReplaced", "all pods of pipeline abc-0: no progress since 2026-01-01T12:00:00Z"),
    ]


@pytest.mark.parametrize("status", [403, 422, 500, 0])
def test_a_refused_scale_is_named_and_ends_no_pass(status):
    """It is that of one revision: the other revisions, and the status, are not to wait for it."""
    server = Server()
    executor = Executor(server)
    stateful_set = server.apply(worker_stateful_sets(SCALED)[0])
    server.refusal = ClusterError(status, "denied by a webhook")
    outcome = executor.run([Scale(stateful_set, 1), Apply(services.client_service(SCALED))], SCALED, Observed())
    name = stateful_set["metadata"]["name"]
    assert outcome.failures == [f"StatefulSet {name} is not scaled to 1: denied by a webhook"]
    assert (outcome.writes, ("Service", "demo") in server.objects) == (1, True)
    server.refusal = None
    assert executor.run([Scale(stateful_set, 1)], SCALED, Observed()).failures == []
