"""The charts, rendered by helm: every combination of switches is valid, and wrong values are refused by name."""

from __future__ import annotations

import functools
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from orca_operator.cluster import API_VERSIONS
from orca_operator.crd import crd
from orca_operator.manifests.pod import tolerations
from orca_operator.metrics_port import PATH
from orca_operator.names import NAME_LABEL, OPERATOR_APP
from orca_operator.store import WATCHED
from orca_operator.validation import parse
from support.kubernetes import helm
from support.pod_security import violations

ROOT = Path(__file__).parents[2]
ORCA = str(ROOT / "charts" / "orca")
MODEL = str(ROOT / "charts" / "orca-model")
SWITCHES: dict[str, list[dict[str, Any]]] = {
    "scope": [{}, {"clusterWide": True}, {"namespaces": ["team-a", "team-b"]}],
    "crds": [{}, {"crds": {"install": False}}, {"crds": {"celRules": False}}],
    "nodes": [{}, {"readNodes": False}],
    "account": [
        {}, {"serviceAccount": {"create": False, "name": "mine"}}, {"serviceAccount": {"annotations": {"a": "b"}}},
    ],
    "pod": [
        {},
        {
            "podAnnotations": {"a": "b"}, "podLabels": {"c": "d"}, "nodeSelector": {"e": "f"},
            "tolerations": [{"key": "g", "operator": "Exists"}], "priorityClassName": "high",
            "affinity": {"nodeAffinity": {}}, "images": {"pullSecrets": [{"name": "registry"}], "pullPolicy": "Always"},
        },
    ],
}  # fmt: skip


def render(chart: str, values: dict[str, Any], folder: Path, name: str = "orca") -> list[dict[str, Any]]:
    return list(filter(None, map(parsed, documents(chart, values, folder, name))))


def documents(chart: str, values: dict[str, Any], folder: Path, name: str = "orca") -> list[str]:
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    done = helm("template", name, chart, "--namespace", "orca-system", "--values", str(path))
    return re.split(r"^---$", done.stdout, flags=re.MULTILINE)


@functools.cache
def parsed(document: str) -> dict[str, Any]:
    """Return a document as YAML. The CRD is in most renderings; the parser in Python takes seven times as long."""
    return yaml.load(document, yaml.CSafeLoader)


@functools.cache
def check_on_a_current_cluster(document: str) -> None:
    kubernetes_validate.validate(parsed(document), "1.36", strict=True)


def test_lint():
    assert "0 chart(s) failed" in helm("lint", "--strict", ORCA).stdout
    assert "0 chart(s) failed" in helm("lint", "--strict", MODEL, "--set", "model.uri=file:///models/demo").stdout


@pytest.mark.long
@pytest.mark.parametrize("scope", SWITCHES["scope"], ids=["own", "all", "some"])
def test_every_combination_of_switches(scope, tmp_path):
    for others in itertools.product(*(SWITCHES[name] for name in ("crds", "nodes", "account", "pod"))):
        values: dict[str, Any] = dict(scope)
        for part in others:
            values |= part
        rendered = [document for document in documents(ORCA, values, tmp_path) if parsed(document)]
        manifests = list(map(parsed, rendered))
        for document, manifest in zip(rendered, manifests, strict=True):
            check_on_a_current_cluster(document)
            if manifest["kind"] == "Deployment":
                assert violations(manifest["spec"]["template"]["spec"]) == []
                assert manifest["spec"]["selector"]["matchLabels"][NAME_LABEL] == OPERATOR_APP
            if manifest["kind"] == "Pod":
                assert violations(manifest["spec"]) == []
        kinds = [manifest["kind"] for manifest in manifests]
        assert kinds.count("Deployment") == 1
        cluster_roles = bool(values.get("clusterWide")) + values.get("readNodes", True)
        assert kinds.count("ClusterRole") == kinds.count("ClusterRoleBinding") == cluster_roles
        roles = 0 if values.get("clusterWide") else 1 + len(values.get("namespaces", []))
        assert kinds.count("Role") == kinds.count("RoleBinding") == roles
        account = values.get("serviceAccount", {}).get("create", True)
        assert kinds.count("ServiceAccount") == (1 if account else 0)
        wanted = values.get("crds", {}).get("install", True)
        assert kinds.count("CustomResourceDefinition") == (1 if wanted else 0)


@pytest.mark.parametrize("rules", [True, False])
def test_the_charts_crd_is_the_projects_and_is_kept(rules, tmp_path):
    found = render(ORCA, {"crds": {"celRules": rules}}, tmp_path)
    (manifest,) = (manifest for manifest in found if manifest["kind"] == "CustomResourceDefinition")
    assert manifest["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert manifest == crd(with_rules=rules)


def test_the_roles_rights_are_bounded(tmp_path):
    (role,) = (manifest for manifest in render(ORCA, {}, tmp_path) if manifest["kind"] == "Role")
    for rule in role["rules"]:
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
    secrets = [rule["verbs"] for rule in role["rules"] if "secrets" in rule["resources"]]
    assert secrets == [["get", "create", "patch", "delete"]]
    pods = [rule["verbs"] for rule in role["rules"] if "pods" in rule["resources"]]
    assert pods == [["get", "list", "watch", "delete"]], "pods of lost nodes are deleted"
    statuses = [rule["verbs"] for rule in role["rules"] if "orcadeployments/status" in rule["resources"]]
    assert statuses == [["patch"]], "the operator reads a status with its OrcaDeployment"


def test_the_only_right_beyond_the_namespaces_is_to_get_nodes(tmp_path):
    """Releases of one name in several namespaces do not share the ClusterRole."""
    (role,) = (manifest for manifest in render(ORCA, {}, tmp_path) if manifest["kind"] == "ClusterRole")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    assert "orca-system" in role["metadata"]["name"]
    (binding,) = (manifest for manifest in render(ORCA, {}, tmp_path) if manifest["kind"] == "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (account,) = (manifest for manifest in render(ORCA, {}, tmp_path) if manifest["kind"] == "ServiceAccount")
    assert [subject["name"] for subject in binding["subjects"]] == [account["metadata"]["name"]]
    without = {manifest["kind"] for manifest in render(ORCA, {"readNodes": False}, tmp_path)}
    assert not without & {"ClusterRole", "ClusterRoleBinding"}


def test_names_that_look_like_other_types_are_strings(tmp_path):
    values = {"namespaces": ["2026"], "serviceAccount": {"name": "1"}, "priorityClassName": "2"}
    manifests = render(ORCA, values, tmp_path)
    assert "2026" in {manifest["metadata"].get("namespace") for manifest in manifests}
    for manifest in manifests:
        check_on_a_current_cluster(yaml.safe_dump(manifest))
    (model,) = render(MODEL, {"model": {"uri": "hf://a/b"}}, tmp_path, "on")
    assert model["metadata"]["name"] == "on"


def test_labels_of_the_user_do_not_repeat_the_charts(tmp_path):
    """Parsers that are stricter than helm's, such as kustomize's, refuse a repeated key."""
    labels = {NAME_LABEL: "mine", "team": "a"}
    rendered = documents(ORCA, {"podLabels": labels, "monitoring": {"enabled": True, "labels": labels}}, tmp_path)
    assert sum(document.count("team: a") for document in rendered) == 2
    assert not any(f"{NAME_LABEL}: mine" in document for document in rendered)


def test_the_test_pod_runs_where_the_operator_runs(tmp_path):
    values = {"nodeSelector": {"a": "b"}, "tolerations": [{}], "affinity": {"d": {}}, "priorityClassName": "e"}
    operator = operator_pod(values, tmp_path)
    (test,) = (manifest["spec"] for manifest in render(ORCA, values, tmp_path) if manifest["kind"] == "Pod")
    assert [test[field] for field in values] == [operator[field] for field in values]
    assert test["containers"][0]["resources"] == operator["containers"][0]["resources"]


def test_the_metrics_have_a_port_and_a_monitor_on_request(tmp_path):
    (deployment,) = (manifest for manifest in render(ORCA, {}, tmp_path) if manifest["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert f"--metrics-port={ports['metrics']}" in container["args"]
    assert "PodMonitor" not in {manifest["kind"] for manifest in render(ORCA, {}, tmp_path)}
    values = {"monitoring": {"enabled": True, "labels": {"release": "prometheus"}}}
    (monitor,) = (manifest for manifest in render(ORCA, values, tmp_path) if manifest["kind"] == "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["metadata"]["namespace"] == "orca-system"
    assert monitor["spec"] == {
        "selector": {"matchLabels": deployment["spec"]["selector"]["matchLabels"]},
        "podMetricsEndpoints": [{"port": "metrics", "path": PATH}],
    }


def operator_pod(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    (deployment,) = (manifest for manifest in render(ORCA, values, folder) if manifest["kind"] == "Deployment")
    return deployment["spec"]["template"]["spec"]


def test_values_of_an_earlier_chart_render_as_the_defaults(tmp_path):
    """`helm upgrade --reuse-values` takes the values of the chart before: later ones are absent."""
    later = dict.fromkeys(("certificatePropagationSeconds", "monitoring", "readNodes"))
    assert render(ORCA, later, tmp_path) == render(ORCA, {}, tmp_path)


NOT_READY, UNREACHABLE = (
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    for name in ("not-ready", "unreachable")
)
FOREVER = {"key": UNREACHABLE["key"], "operator": "Exists"}
OTHER_EFFECT = {"operator": "Exists", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], [NOT_READY, UNREACHABLE]),
        ([OTHER_EFFECT], [NOT_READY, UNREACHABLE]),
        ([FOREVER], [NOT_READY]),
        ([{"operator": "Exists"}], []),
    ],
)
def test_the_operator_leaves_a_lost_node_as_early_as_the_pods(given, added, tmp_path):
    assert operator_pod({"tolerations": given}, tmp_path)["tolerations"] == [*added, *given]
    assert tolerations([]) == [NOT_READY, UNREACHABLE]


@pytest.mark.parametrize(
    ("annotations", "command"),
    [
        ({}, "kubectl apply --server-side -f crds/"),
        (
            {"meta.helm.sh/release-namespace": "other", "meta.helm.sh/release-name": "orca"},
            "kubectl apply --server-side --force-conflicts -f crds/",
        ),
    ],
)
def test_the_notes_upgrade_a_crd_of_another_owner(annotations, command, tmp_path):
    assert f"Upgrade it with `{command}`" in notes({}, annotations, tmp_path)


def test_the_notes_name_the_crd_without_rules_for_old_servers(tmp_path):
    assert "-f charts/orca/files/orcadeployment-legacy.yaml`" in notes({"crds": {"celRules": False}}, {}, tmp_path)


def notes(values: dict[str, Any], annotations: dict[str, str], folder: Path) -> str:
    """Return the notes beside a CRD with `annotations`, from a copy of the chart that has the answer of the cluster."""
    copy = folder / "orca"
    shutil.copytree(ORCA, copy)
    helpers = copy / "templates" / "_helpers.tpl"
    found = json.dumps(json.dumps({"metadata": {"annotations": annotations}}))
    text, count = re.subn(r"lookup (\S+ ){3}\S+ }}", lambda _: f"fromJson {found} }}}}", helpers.read_text())
    assert count == 1
    helpers.write_text(text)
    (copy / "templates" / "NOTES.txt").rename(copy / "files" / "notes")
    (copy / "templates" / "notes.yaml").write_text('notes: {{ tpl (.Files.Get "files/notes") . | toJson }}\n')
    (text,) = (each["notes"] for each in render(str(copy), values, folder) if "notes" in each)
    return text


def test_the_role_covers_every_kind_that_the_operator_watches(tmp_path):
    """A kind that may not be listed would end every pass."""
    (role,) = (manifest for manifest in render(ORCA, {}, tmp_path) if manifest["kind"] == "Role")
    allowed = {
        (group, resource): rule["verbs"]
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    for kind in WATCHED:
        name = kind.lower()
        plural = f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"
        verbs = allowed[API_VERSIONS[kind].rpartition("/")[0], plural]
        assert set(verbs) >= {"get", "list", "watch"}, kind
        assert kind == "Pod" or set(verbs) >= {"create", "patch", "delete"}, kind


@pytest.mark.parametrize(
    ("chart", "values", "words"),
    [
        (ORCA, {"image": {}}, "image"),
        (ORCA, {"clusterWide": "yes"}, "clusterWide"),
        (ORCA, {"clusterWide": True, "namespaces": ["a"]}, "clusterWide and namespaces exclude each other"),
        (ORCA, {"images": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        (ORCA, {"monitoring": {"enabled": "yes"}}, "enabled"),
        (ORCA, {"namespaces": ["Not A Name"]}, "namespaces"),
        (MODEL, {}, "model"),
        (MODEL, {"model": {"uri": "ftp://x"}}, "model.uri"),
        (MODEL, {"model": {"uri": "file:///m"}, "replicas": -1}, "replicas"),
        (MODEL, {"model": {"uri": "file:///m"}, "paralelism": {}}, "paralelism"),
        (MODEL, {"model": {"uri": "file:///m"}, "communication": {"backend": "mpi"}}, "communication.backend"),
        (ORCA, {"namespaces": None}, "namespaces is required"),
        (ORCA, {"crds": {"celRules": None}}, "celRules is required"),
        (ORCA, {"serviceAccount": None}, "serviceAccount is required"),
    ],
)
def test_values_outside_the_schema_are_refused(chart, values, words, tmp_path):
    path = tmp_path / "values.json"
    path.write_text(json.dumps(values))
    done = helm("template", "x", chart, "--values", str(path), check=False)
    assert done.returncode != 0
    assert words in done.stderr


def test_a_model_from_values(tmp_path):
    values = {
        "model": {"uri": "hf://a/b"}, "parallelism": {"pipelineParallelSize": 2}, "nameOverride": "other",
        "annotations": {"x": "z"}, "worker": {"resources": {"limits": {"memory": "8Gi", "cpu": 4}}},
    }  # fmt: skip
    (manifest,) = render(MODEL, values, tmp_path)
    assert manifest["metadata"]["name"] == "other"
    assert manifest["metadata"]["annotations"] == {"x": "z"}
    parsed = parse("other", manifest["spec"])
    assert parsed.parallelism.pipeline_parallel_size == 2
    assert "nameOverride" not in manifest["spec"]
