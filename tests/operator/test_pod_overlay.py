"""`podTemplate`: what is merged, what is refused, and that the pods of today need no more protection than listed."""

from __future__ import annotations

import json
import textwrap
from importlib import resources
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from orca_operator import names
from orca_operator.crd import crd
from orca_operator.manifests.master import master_deployment
from orca_operator.manifests.pod import CACHE_GROUP
from orca_operator.manifests.workers import worker_stateful_sets
from orca_operator.pod_overlay import MERGE_KEYS, RESERVED_LABELS, RESERVED_MOUNTS, RESERVED_VOLUMES, merged
from orca_operator.revision import revision_hash
from orca_operator.validation import InvalidSpecError, parse
from support.crdcheck import judge, resource
from support.orcadeployments import MINIMAL, context

GOLDEN = Path(__file__).parent / "golden" / "pod-template.yaml"
TEMPLATE = {
    "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}, "annotations": {"team": "x"}},
    "spec": {
        "serviceAccountName": "reads-a-bucket",
        "securityContext": {"runAsUser": 1000, "supplementalGroups": [5]},
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {names.DEPLOYMENT_LABEL: "demo"}},
            }
        ],
        "tolerations": [
            {
                "key": "node.kubernetes.io/not-ready",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            },
            {"key": "spot", "operator": "Exists"},
        ],
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "four-gpus"}],
        "initContainers": [
            {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"},
            {"name": "fetch-model", "resources": {"limits": {"memory": "1Gi"}}},
        ],
        "containers": [
            {"name": "logs", "image": "logs:1", "volumeMounts": [{"name": "scratch", "mountPath": "/logs"}]},
            {
                "name": "worker",
                "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
                "resources": {
                    "claims": [{"name": "gpus"}],
                    "limits": {"nvidia.com/gpu": "0"},
                    "requests": {"nvidia.com/gpu": "0"},
                },
                "securityContext": {"capabilities": {"add": ["SYS_NICE"]}},
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            },
        ],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    },
}
SPEC = {
    "model": {"uri": "hf://a/b"},
    "worker": {"podTemplate": TEMPLATE, "extraArgs": ["--log-level", "debug"]},
    "master": {
        "podTemplate": {"spec": {"dnsPolicy": "Default"}},
        "extraArgs": ["--disable-log-requests", "--root-path=/v"],
    },
}


def with_template(role: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {**MINIMAL, role: {"podTemplate": {"spec": spec, "metadata": metadata}}}


def workloads(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [master_deployment(context(spec)), *worker_stateful_sets(context(spec))]


def test_golden(golden):
    golden(GOLDEN, yaml.safe_dump_all(workloads(SPEC), sort_keys=True, width=120))


def test_the_merged_pods_are_valid_for_a_current_cluster():
    for workload in workloads(SPEC):
        kubernetes_validate.validate(workload, "1.36", strict=True)


@pytest.mark.parametrize(("kubernetes", "version"), [("1.36", "v1alpha2"), ("1.37", "v1beta1")])
def test_the_pod_group_of_the_how_to_is_valid_where_it_is_served(kubernetes, version):
    """docs/how-to/pods.md: the user creates the PodGroup, and the pods name it."""
    group = {
        "apiVersion": f"scheduling.k8s.io/{version}",
        "kind": "PodGroup",
        "metadata": {"name": "demo"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    kubernetes_validate.validate(group, kubernetes, strict=True)
    for workload in workloads(with_template("worker", {"schedulingGroup": {"podGroupName": "demo"}})):
        kubernetes_validate.validate(workload, kubernetes, strict=True)


def test_the_volume_of_the_batches_is_writable_for_the_pods_user():
    """docs/how-to/batch.md: its example gives a block volume, whose root belongs to root, to the pods' group."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "batch.md").read_text(encoding="utf-8")
    block = (
        "    spec:\n      rolloutStrategy" + page.partition("    spec:\n      rolloutStrategy")[2].partition("\n\n")[0]
    )
    spec = MINIMAL | yaml.safe_load(textwrap.dedent(block))["spec"]
    deployment = workloads(spec)[0]
    kubernetes_validate.validate(deployment, "1.36", strict=True)
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["fsGroup"] == CACHE_GROUP
    assert {"name": "batches", "mountPath": "/batches"} in pod["containers"][0]["volumeMounts"]


def test_lists_are_merged_by_their_keys():
    _, stateful_set = workloads(SPEC)
    metadata, pod = stateful_set["spec"]["template"]["metadata"], stateful_set["spec"]["template"]["spec"]
    assert metadata["labels"].items() >= {"kueue.x-k8s.io/queue-name": "gpus", names.ROLE_LABEL: "worker"}.items()
    assert metadata["annotations"] == {"sidecar.istio.io/inject": "false", "team": "x"}
    engine, logs = pod["containers"]
    assert (engine["name"], logs["name"]) == ("worker", "logs")
    assert engine["args"][-2:] == ["--log-level", "debug"]
    assert engine["resources"]["limits"] == {"nvidia.com/gpu": "0"}
    assert engine["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_NICE"]}
    assert {"name": "scratch", "mountPath": "/scratch"} in engine["volumeMounts"]
    assert {mount["mountPath"] for mount in engine["volumeMounts"]} >= {"/tmp", "/dev/shm"}
    assert [container["name"] for container in pod["initContainers"]] == ["proxy", "fetch-model"]
    assert pod["initContainers"][1]["args"][0] == "fetch"
    assert pod["securityContext"] == {
        "runAsNonRoot": True, "runAsUser": 1000, "supplementalGroups": [5],
        "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    seconds = {each["key"]: each.get("tolerationSeconds") for each in pod["tolerations"]}
    assert seconds == {
        "node.kubernetes.io/not-ready": 300, "node.kubernetes.io/unreachable": 30, "nvidia.com/gpu": None,
        "spot": None,
    }  # fmt: skip


def test_the_list_keys_are_those_of_kubernetes():
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema" / "v1.36.0-local"
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
    published: dict[str, set[tuple[str, ...]]] = {}

    def collect(node: dict[str, Any], seen: frozenset[str] = frozenset()) -> None:
        if "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            if name not in seen and "ObjectMeta" not in name:
                collect(definitions[name], seen | {name})
        for field, child in node.get("properties", {}).items():
            if "items" in child:
                if child.get("x-kubernetes-list-type") == "map":
                    published.setdefault(field, set()).add(tuple(child["x-kubernetes-list-map-keys"]))
                collect(child["items"], seen)
            collect(child, seen)

    collect(definitions["io.k8s.api.core.v1.PodSpec"])
    published.pop("ephemeralContainers")  # the API server refuses them in a template
    assert {"tolerations": {MERGE_KEYS["tolerations"]}} | published == {
        field: {keys} for field, keys in MERGE_KEYS.items()
    }


def test_a_null_counts_as_absent_and_other_values_replace():
    spec = {
        "terminationGracePeriodSeconds": None,
        "dnsConfig": {"options": [{"name": "ndots", "value": None}], "searches": None},
        "securityContext": {"runAsNonRoot": None, "supplementalGroups": [5]},
    }
    master, _ = workloads(with_template("master", spec))
    pod = master["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 40
    assert pod["dnsConfig"] == {"options": [{"name": "ndots"}]}
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["supplementalGroups"]) == (True, [5])
    assert merged({"c": [1, 2], "d": 1}, {"c": [3], "d": {"e": 1}}) == {"c": [3], "d": {"e": 1}}


ENGINE = {"name": "worker"}
FETCH = {"name": "fetch-model"}


@pytest.mark.parametrize(
    ("spec", "field", "remedy"),
    [
        ({"affinity": {}}, "affinity", "spec.worker"),
        ({"automountServiceAccountToken": True}, "automountServiceAccountToken", "projected volume"),
        ({"terminationGracePeriodSeconds": 5}, "terminationGracePeriodSeconds", "spec.drainTimeoutSeconds"),
        ({"serviceAccount": "x"}, "serviceAccount", "serviceAccountName"),
        ({"containers": [ENGINE | {"command": ["sh"]}]}, "containers[0].command", "spec.worker.extraArgs"),
        ({"containers": [ENGINE | {"args": ["x"]}]}, "containers[0].args", "spec.worker.extraArgs"),
        ({"containers": [ENGINE | {"image": "x"}]}, "containers[0].image", "spec.worker.image"),
        ({"containers": [ENGINE | {"imagePullPolicy": "x"}]}, "containers[0].imagePullPolicy", "spec.imagePullPolicy"),
        ({"containers": [{"name": "a"}, ENGINE | {"ports": []}]}, "containers[1].ports", "leave it out"),
        ({"containers": [ENGINE | {"livenessProbe": {}}]}, "containers[0].livenessProbe", "leave it out"),
        ({"containers": [ENGINE | {"readinessProbe": {}}]}, "containers[0].readinessProbe", "leave it out"),
        ({"containers": [ENGINE | {"startupProbe": {}}]}, "containers[0].startupProbe", "leave it out"),
        (
            {"containers": [ENGINE | {"volumeMounts": [{"name": "a", "mountPath": "/tmp/"}]}]},
            "containers[0].volumeMounts[0].mountPath",
            "choose another path",
        ),
        (
            {"containers": [ENGINE | {"resources": {"limits": {"nvidia.com/gpu": 8}}}]},
            "containers[0].resources.limits",
            "parallelism.tensorParallelSize",
        ),
        ({"initContainers": [FETCH | {"args": []}]}, "initContainers[0].args", "leave it out"),
        ({"volumes": [{"name": "tmp", "hostPath": {"path": "/"}}]}, "volumes[0].name", "choose another name"),
        ({"containers": [{"image": "x"}]}, "containers[0].name", "is required"),
        ({"volumes": ["x"]}, "volumes[0].name", "is required"),
        ({"containers": {"worker": {}}}, "containers", "must be a list"),
    ],
)
def test_what_the_operator_needs_is_refused_by_name(spec, field, remedy):
    with pytest.raises(InvalidSpecError) as refused:
        parse("demo", with_template("worker", spec))
    assert str(refused.value).startswith(f"spec.worker.podTemplate.spec.{field}")
    assert remedy in str(refused.value)
    _, verdict = judge(crd(), [resource("demo", with_template("worker", spec))])
    assert verdict.accepted, "the CRD does not list the fields of a pod: only the operator knows"


@pytest.mark.parametrize("label", sorted(RESERVED_LABELS))
def test_the_operators_labels_are_refused(label):
    with pytest.raises(InvalidSpecError, match=f"spec.master.podTemplate.metadata.labels.{label} cannot be set"):
        parse("demo", with_template("master", {}, labels={label: "x"}))


def test_the_drain_of_a_master_stays():
    lifecycle = {"preStop": {"exec": {"command": ["true"]}}}
    with pytest.raises(InvalidSpecError, match=r"containers\[0\]\.lifecycle cannot be set"):
        parse("demo", with_template("master", {"containers": [{"name": "master", "lifecycle": lifecycle}]}))
    parse("demo", with_template("worker", {"containers": [{"name": "worker", "lifecycle": lifecycle}]}))


def test_wrong_types_are_left_to_the_dry_run():
    """They reach the API server, which refuses them before anything changes."""
    spec = with_template("worker", {"securityContext": [], "tolerations": {}, "containers": [ENGINE | {"env": 1}]})
    (_, stateful_set) = workloads(spec)
    pod = stateful_set["spec"]["template"]["spec"]
    assert (pod["securityContext"], pod["tolerations"], pod["containers"][0]["env"]) == ([], {}, 1)


RICH = {
    "model": {"uri": "hf://a/b"},
    "auth": {"apiKeySecretRef": {"name": "keys"}},
    "communication": {"backend": "gloo"},
    "worker": {"volumes": [{"name": "mine", "emptyDir": {}}]},
}


def test_the_reserved_names_are_those_of_the_rendered_pods():
    volumes, mounts, labels = set(), set(), set()
    for spec in (RICH, {**RICH, "model": {"uri": "pvc://claim/path"}}):
        for workload in workloads(spec):
            template = workload["spec"]["template"]
            volumes |= {volume["name"] for volume in template["spec"]["volumes"]} - {"mine"}
            mounts |= {mount["mountPath"] for mount in template["spec"]["containers"][0]["volumeMounts"]}
            labels |= set(template["metadata"]["labels"]) - {names.VERSION_LABEL, *names.ENGINE_TYPE}
    assert (volumes, mounts, labels) == (RESERVED_VOLUMES, RESERVED_MOUNTS, RESERVED_LABELS)


def test_unset_fields_change_no_revision():
    unset = {**MINIMAL, "worker": {"extraArgs": []}, "master": {"extraArgs": []}}
    assert revision_hash(parse("demo", unset)) == revision_hash(parse("demo", MINIMAL))
    assert revision_hash(parse("demo", {**MINIMAL, **{"worker": SPEC["worker"]}})) != revision_hash(
        parse("demo", MINIMAL)
    )


@pytest.mark.parametrize(
    ("overlay", "policy"),
    [
        ({"hostNetwork": True}, "ClusterFirstWithHostNet"),
        ({"hostNetwork": True, "dnsPolicy": "None"}, "None"),
        ({"hostNetwork": False}, None),
    ],
)
def test_pods_on_the_network_of_their_node_resolve_names_of_the_cluster(overlay, policy):
    _, workers = workloads(with_template("worker", overlay))
    assert workers["spec"]["template"]["spec"].get("dnsPolicy") == policy
