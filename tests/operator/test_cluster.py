"""The calls to the API server, over HTTP to an API server of this process: paths, bodies, and errors in its words."""

from __future__ import annotations

import contextlib
import contextvars
import tempfile
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client import rest
from orca_operator import cluster as cluster_module
from orca_operator import names
from orca_operator.cluster import CALL_ENDED, CALL_SECONDS, Cluster, ClusterError, KindNotServedError, connect
from orca_operator.manifests.access import disruption_budget
from orca_operator.names import KIND
from support.kubernetes_api import KubernetesApi
from support.orcadeployments import MINIMAL, context, merged

KINDS = ("Service", "Pod", "StatefulSet", "Event", "Node", KIND, "PodDisruptionBudget")
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "demo", "namespace": "default", "labels": names.labels("demo")},
    "spec": {"ports": [{"port": 80}]},
}


def unnoticed(_verb: str, _kind: str) -> None:
    """Nobody counts these writes."""


PATH = "/api/v1/namespaces/default/services"


@pytest.fixture
def api(tmp_path: Path, monkeypatch):
    server = KubernetesApi(KINDS)
    with server.serve(tmp_path) as kubeconfig:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        monkeypatch.setattr(client.Configuration, "_default", None)
        yield server


@pytest.fixture
def cluster(api) -> Cluster:
    found = connect(unnoticed)
    api.requests.clear()
    return found


def test_an_object_is_read_and_one_that_is_absent_is_none(api, cluster):
    api.put("Service", SERVICE)
    assert cluster.get("Service", "default", "demo")["spec"] == SERVICE["spec"]
    assert cluster.get("Service", "default", "absent") is None


@pytest.mark.parametrize(("minor", "known"), [("27", True), ("31+", True), ("26", False), ("", False)])
def test_a_budget_lets_nodes_drain_while_pods_are_not_ready_if_the_server_knows_how(api, minor, known):
    """Servers before 1.26 reject the field under server-side apply."""
    api.answers["/version"] = (200, {"major": "1", "minor": minor, "gitVersion": "v"})
    budget = disruption_budget(context(merged(MINIMAL, replicas=2, podDisruptionBudget={"enabled": True})))
    assert budget is not None
    connect(unnoticed).apply(budget)
    sent = api.bodies[-1]["spec"]
    assert sent.pop("unhealthyPodEvictionPolicy", None) == ("AlwaysAllow" if known else None)
    assert sent == {key: budget["spec"][key] for key in ("maxUnavailable", "selector")}


def test_no_file_is_left_behind(api, tmp_path, monkeypatch, caplog):
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(temporary)
    assert connect(unnoticed).serves("Service")
    assert list(temporary.iterdir()) == []
    assert caplog.messages == []


@pytest.mark.parametrize("status", [200, 404, 500])
def test_the_end_of_each_call_is_noted_on_its_thread(api, cluster, status):
    api.answers[f"{PATH}/demo"] = (status, {"kind": "Service", "apiVersion": "v1"})
    ends: list[str] = []

    def call() -> None:
        CALL_ENDED.set(lambda: ends.append("call"))
        cluster.get("Service", "default", "demo")

    cluster.get("Service", "default", "absent")
    assert ends == []
    with pytest.raises(ClusterError) if status == 500 else contextlib.nullcontext():
        contextvars.copy_context().run(call)
    assert ends == ["call"]


def test_children_are_those_with_the_label_and_have_their_kind(api, cluster):
    """Items of a listing have no kind of their own on real servers."""
    items = [{"metadata": {"name": "demo"}}]
    api.answers[PATH] = (200, {"kind": "ServiceList", "apiVersion": "v1", "items": items})
    (child,) = cluster.children("Service", "default", "demo")
    assert (child["kind"], child["metadata"]) == ("Service", {"name": "demo"})
    _, path, query = api.requests[-1]
    assert (path, query["labelSelector"]) == (PATH, f"{names.DEPLOYMENT_LABEL}=demo")


def test_apply_is_server_side_with_one_field_manager(api, cluster):
    assert cluster.apply(SERVICE)["spec"] == SERVICE["spec"]
    method, path, query = api.requests[-1]
    assert (method, path) == ("PATCH", f"{PATH}/demo")
    assert (query["fieldManager"], query["force"].lower()) == (names.FIELD_MANAGER, "true")
    assert api.bodies[-1] == SERVICE


@pytest.mark.parametrize(
    ("items", "expected"), [([{"reason": "FailedCreate"}], ["FailedCreate"]), ([], []), (None, [])]
)
def test_events_are_those_of_one_object(api, cluster, items, expected):
    """Go writes an empty list as null, unless it takes care."""
    path = "/api/v1/namespaces/default/events"
    api.answers[path] = (200, {"kind": "EventList", "apiVersion": "v1", "items": items})
    assert [event["reason"] for event in cluster.events("default", "uid-1")] == expected
    _, asked, query = api.requests[-1]
    assert (asked, query["fieldSelector"]) == (path, "involvedObject.uid=uid-1")


def test_create(api, cluster):
    cluster.create({"kind": "Event", "apiVersion": "v1", "metadata": {"name": "e", "namespace": "default"}})
    assert api.writes() == [("POST", "/api/v1/namespaces/default/events")]


def test_deletion_is_of_this_object_alone(api, cluster):
    cluster.delete("Service", "default", "demo", "uid-1")
    assert api.writes() == [("DELETE", f"{PATH}/demo")]
    assert api.bodies[-1] == {"preconditions": {"uid": "uid-1"}, "propagationPolicy": "Background"}


def test_a_forced_deletion_waits_for_no_kubelet_and_is_of_this_pod_alone(api, cluster):
    pods = PATH.replace("services", "pods")
    assert cluster.force_delete("default", "demo-0", "uid-1")
    assert api.writes() == [("DELETE", f"{pods}/demo-0")]
    assert api.bodies[-1] == {"preconditions": {"uid": "uid-1"}, "gracePeriodSeconds": 0}
    for status in (404, 409):
        api.answers[f"{pods}/demo-0"] = (status, {"message": "gone"})
        assert not cluster.force_delete("default", "demo-0", "uid-1")
    api.answers[f"{pods}/demo-0"] = (403, {"message": "forbidden"})
    with pytest.raises(ClusterError, match="forbidden"):
        cluster.force_delete("default", "demo-0", "uid-1")


def test_a_node_has_no_namespace(api, cluster):
    api.answers["/api/v1/nodes/n1"] = (200, {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}})
    node = cluster.get("Node", "", "n1")
    assert node is not None
    assert node["metadata"]["name"] == "n1"


@pytest.mark.parametrize("status", [404, 409])
def test_what_is_gone_or_another_one_by_now_is_no_error(api, cluster, status):
    api.answers[f"{PATH}/demo"] = (status, {"message": "gone"})
    cluster.delete("Service", "default", "demo", "uid-1")
    assert api.writes() == [("DELETE", f"{PATH}/demo")]


def test_status_of_one_version_is_merged_and_a_null_removes_a_field(api, cluster):
    api.put(KIND, {"metadata": {"name": "demo", "namespace": "default"}})
    cluster.patch_status("default", "demo", {"replicas": 1, "topology": None}, "7")
    method, path, _ = api.requests[-1]
    assert method == "PATCH"
    assert path == f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}/demo/status"
    assert api.bodies[-1] == {"metadata": {"resourceVersion": "7"}, "status": {"replicas": 1, "topology": None}}


@pytest.mark.parametrize("status", [400, 403, 409, 422, 500, 503])
def test_a_refusal_has_the_status_and_the_words_of_the_server(api, cluster, status):
    api.answers[f"{PATH}/demo"] = (status, {"kind": "Status", "message": "no, because"})
    for call in (
        lambda: cluster.apply(SERVICE),
        lambda: cluster.get("Service", "default", "demo"),
    ):
        with pytest.raises(ClusterError) as raised:
            call()
        assert (raised.value.status, str(raised.value)) == (status, "no, because")


def test_a_kind_that_the_cluster_does_not_serve_is_looked_up_once_in_ten_minutes(api, cluster, monkeypatch):
    for _ in range(3):
        with pytest.raises(KindNotServedError, match=r"monitoring.coreos.com/v1 PodMonitor"):
            cluster.children("PodMonitor", "default", "demo")
        first = len(api.requests)
        assert api.writes() == []
    cluster.children("Pod", "default", "demo")
    before = len(api.requests)
    with pytest.raises(KindNotServedError):
        cluster.children("PodMonitor", "default", "demo")
    assert len(api.requests) == before >= first
    monkeypatch.setattr(cluster_module, "MISSING_SECONDS", 0.0)
    with pytest.raises(KindNotServedError):
        cluster.children("PodMonitor", "default", "demo")
    assert len(api.requests) > before


def test_a_kind_whose_add_on_was_removed_is_skipped_until_it_is_back(tmp_path, monkeypatch):
    """The client's own cache never learns of the removal; a path that is not there answers 404."""
    monkeypatch.setattr(client.Configuration, "_default", None)
    server = KubernetesApi((*KINDS, "PodMonitor"))
    path = "/apis/monitoring.coreos.com/v1/namespaces/default/podmonitors"
    monitor = {**SERVICE, "kind": "PodMonitor", "apiVersion": "monitoring.coreos.com/v1"}
    gone = (404, {"kind": "Status", "message": "the server could not find the requested resource"})
    with server.serve(tmp_path) as kubeconfig:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        found = connect(unnoticed)
        assert found.children("PodMonitor", "default", "demo") == []
        server.answers[path] = gone
        server.answers[f"{path}/demo"] = gone
        for call in (lambda: found.children("PodMonitor", "default", "demo"), lambda: found.apply(monitor)):
            found._resources.pop("PodMonitor", None)
            for _ in range(2):
                with pytest.raises(KindNotServedError, match=r"monitoring.coreos.com/v1 PodMonitor"):
                    call()
        found.delete("PodMonitor", "default", "demo", "uid")
        server.answers[f"{path}/demo"] = (404, {"kind": "Status", "message": 'namespaces "default" not found'})
        found._resources.pop("PodMonitor")
        with pytest.raises(ClusterError, match="namespaces"):
            found.apply(monitor)
        server.answers.clear()
        monkeypatch.setattr(cluster_module, "MISSING_SECONDS", 0.0)
        assert found.children("PodMonitor", "default", "demo") == []
        server.answers[PATH] = gone
        with pytest.raises(ClusterError, match="could not find"):
            found.children("Service", "default", "demo")


def test_a_server_that_is_gone_is_an_error_with_status_0(tmp_path, monkeypatch):
    server = KubernetesApi(KINDS)
    monkeypatch.setattr(client.Configuration, "_default", None)
    with server.serve(tmp_path) as kubeconfig:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        found = connect(unnoticed)
        assert found.get("Service", "default", "demo") is None
    for call in (
        lambda: found.get("Service", "default", "demo"),
        lambda: found.children("Pod", "default", "demo"),  # needs the discovery first
        lambda: found.serves("PodMonitor"),
        lambda: connect(unnoticed),
    ):
        with pytest.raises(ClusterError, match="the API server does not answer: ") as raised:
            call()
        assert raised.value.status == 0
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/version", "PodMonitor"), ("/apis", "PodMonitor"), ("/api/v1", "Pod"), ("/apis/apps/v1", "StatefulSet")],
)
def test_an_error_of_the_discovery_has_the_words_of_the_server(api, cluster, path, kind):
    """Not the client's own, which are the headers and a traceback."""
    api.answers[path] = (500, {"kind": "Status", "message": "no, because"})
    with pytest.raises(ClusterError, match=r"^no, because$") as raised:
        cluster.get(kind, "default", "demo")
    assert raised.value.status == 500
    with pytest.raises(ClusterError, match=r"^(no cluster: )?no, because$"):
        connect(unnoticed).get(kind, "default", "demo")


def test_no_request_is_without_a_timeout(api, monkeypatch):
    """Those of the discovery hold a lock, which every call needs."""
    timeouts = []
    request = rest.RESTClientObject.request

    def note(*arguments: Any, **named: Any) -> Any:
        timeouts.append(named["_request_timeout"])
        return request(*arguments, **named)

    monkeypatch.setattr(rest.RESTClientObject, "request", note)
    found = connect(unnoticed)
    at_start = len(timeouts)
    found.get("Service", "default", "demo")
    with pytest.raises(KindNotServedError):
        found.children("PodMonitor", "default", "demo")
    assert 1 < at_start < len(timeouts) - 3
    assert set(timeouts) == {CALL_SECONDS}


def test_without_a_kubeconfig_there_is_no_cluster(tmp_path, monkeypatch):
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "absent"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match="no cluster"):
        connect(unnoticed)


def test_each_write_is_noted_by_verb_and_kind_and_a_dry_run_is_none(api):
    noted: list[tuple[str, str]] = []
    cluster = connect(lambda verb, kind: noted.append((verb, kind)))
    api.requests.clear()
    cluster.apply(SERVICE, dry_run=True)
    cluster.get("Service", "default", "demo")
    assert noted == []
    cluster.apply(SERVICE)
    cluster.scale("StatefulSet", "default", "demo", 2)
    cluster.delete("Service", "default", "demo", "uid-1")
    cluster.patch_status("default", "demo", {}, "7")
    cluster.create({"kind": "Event", "apiVersion": "v1", "metadata": {"name": "e", "namespace": "default"}})
    assert noted == [("patch", "Service"), ("patch", "StatefulSet"), ("delete", "Service"), ("patch", KIND),
                     ("create", "Event")]  # fmt: skip
    assert len(api.writes()) == 1 + len(noted)
    with pytest.raises(KindNotServedError):
        cluster.create({"kind": "PodMonitor", "metadata": {"namespace": "default"}})
    assert len(noted) == 5, "no request was sent"
