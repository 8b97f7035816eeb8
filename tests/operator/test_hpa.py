"""The HorizontalPodAutoscaler: golden YAML, valid for the published schemas, with metrics that the adapter serves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from kubernetes import client
from orca_operator import names
from orca_operator.manifests import access, hpa
from orca_operator.scaling import wanted_autoscaler
from support.orcadeployments import MINIMAL, ROOT, UID, context, merged

GOLDEN = Path(__file__).parent / "golden" / "autoscaling-hpa.yaml"
GUIDE = (ROOT / "docs" / "how-to" / "autoscale.md").read_text(encoding="utf-8")
POLICIES = {
    "scaleUp": {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}], "tolerance": "50m"},
    "scaleDown": {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}]},
}
FULL = {
    "minReplicas": 2, "maxReplicas": 8, "targetQueueDepth": 4, "targetBatchUsagePercent": 80, "behavior": POLICIES,
}  # fmt: skip


def rendered(**autoscaling) -> dict:
    (manifest,) = wanted_autoscaler(context(merged(MINIMAL, autoscaling=autoscaling)))
    return manifest


def test_golden(golden):
    golden(GOLDEN, yaml.safe_dump(rendered(**FULL), sort_keys=True, width=120))


def test_none_without_autoscaling():
    assert wanted_autoscaler(context(MINIMAL)) == []


@pytest.mark.parametrize("version", ["1.25", "1.36"])
def test_valid_for_the_published_schema(version):
    autoscaling = FULL if version == "1.36" else FULL | {"behavior": {"scaleDown": POLICIES["scaleDown"]}}
    kubernetes_validate.validate(rendered(**autoscaling), version, strict=True)


def test_the_schema_notices_an_unknown_field():
    broken = rendered()
    broken["spec"]["metrics"][0]["object"]["describedObjct"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="describedObjct"):
        kubernetes_validate.validate(broken, "1.36", strict=True)


def test_the_same_spec_is_valid_as_v2beta2():
    """For servers before 1.23; Kubernetes 1.25 is the last version with v2beta2."""
    manifest = rendered(maxReplicas=3, scaleDownDelaySeconds=0) | {"apiVersion": "autoscaling/v2beta2"}
    kubernetes_validate.validate(manifest, "1.25", strict=True)


def test_the_kubernetes_client_reads_and_writes_it_unchanged():
    manifest = rendered(**FULL)
    api = client.ApiClient()
    read = api.deserialize(json.dumps(manifest), "V2HorizontalPodAutoscaler", "application/json")
    assert isinstance(read, client.V2HorizontalPodAutoscaler)
    assert api.sanitize_for_serialization(read) == manifest


def test_it_targets_the_orcadeployment_which_owns_it():
    manifest = rendered(maxReplicas=3)
    target = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "demo"}
    assert manifest["spec"]["scaleTargetRef"] == target
    assert [metric["object"]["describedObject"] for metric in manifest["spec"]["metrics"]] == [target, target]
    (owner,) = manifest["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == (names.KIND, UID, True)
    assert manifest["metadata"]["labels"][names.DEPLOYMENT_LABEL] == "demo"


@pytest.mark.parametrize(("percent", "quantity"), [(1, "10m"), (80, "800m"), (99, "990m"), (100, "1")])
def test_the_queue_counts_per_pipeline_and_the_cache_as_a_mean(percent, quantity):
    queue, cache = rendered(targetQueueDepth=5, targetKVCacheUsagePercent=percent)["spec"]["metrics"]
    assert queue["object"]["target"] == {"type": "AverageValue", "averageValue": "5"}
    assert cache["object"]["target"] == {"type": "Value", "value": quantity}


@pytest.mark.parametrize(("size", "percent", "target"), [(1, 100, "32"), (1, 80, "25"), (2, 100, "64"), (1, 1, "1")])
def test_the_running_requests_count_per_pipeline_and_only_with_a_target(size, percent, target):
    """Without the adapter's rule for it, an HPA with the metric would remove no pipeline."""
    spec = merged(MINIMAL, parallelism={"pipelineParallelSize": size})
    (manifest,) = wanted_autoscaler(context(merged(spec, autoscaling={"targetBatchUsagePercent": percent})))
    running = manifest["spec"]["metrics"][2]["object"]
    assert running["metric"] == {"name": hpa.RUNNING_METRIC}
    assert running["target"] == {"type": "AverageValue", "averageValue": target}


def test_zero_is_rendered_as_one():
    assert rendered(minReplicas=0)["spec"]["minReplicas"] == 1


@pytest.mark.parametrize(
    ("behavior", "expected"),
    [
        (None, {"scaleDown": {"stabilizationWindowSeconds": 120}}),
        (
            {"scaleDown": {"selectPolicy": "Min"}},
            {"scaleDown": {"stabilizationWindowSeconds": 120, "selectPolicy": "Min"}},
        ),
        ({"scaleDown": {"stabilizationWindowSeconds": 7}}, {"scaleDown": {"stabilizationWindowSeconds": 7}}),
        (
            {"scaleUp": {"stabilizationWindowSeconds": 9}},
            {"scaleUp": {"stabilizationWindowSeconds": 9}, "scaleDown": {"stabilizationWindowSeconds": 120}},
        ),
    ],
)  # fmt: skip
def test_policies_are_passed_through_and_win_over_the_delay(behavior, expected):
    given = {} if behavior is None else {"behavior": behavior}
    assert rendered(scaleDownDelaySeconds=120, **given)["spec"]["behavior"] == expected


# -- the adapter's rules of docs/how-to/autoscale.md -------------------------------------------------------------------


def adapter_rules() -> list[dict]:
    """Return the indented block that begins with `rules:`, values of prometheus-adapter's chart."""
    (block,) = re.findall(r"(?:^    rules:\n)(?:    .*\n)+", GUIDE, re.MULTILINE)
    return yaml.safe_load("\n".join(line[4:] for line in block.splitlines()))["rules"]["custom"]


def test_the_adapters_rules_serve_the_metrics_of_the_hpa():
    """An adapter maps a series to the object that a label names, and renames the series."""
    offered = {}
    for rule in adapter_rules():
        (series,) = re.match(r"(orca:\w+)\{", rule["seriesQuery"]).groups()
        name = re.sub(rule["name"]["matches"], re.sub(r"\$\{(\d)\}", r"\\\1", rule["name"]["as"]), series)
        offered[name] = rule
        assert rule["resources"]["overrides"]["namespace"] == {"resource": "namespace"}
        (label,) = rule["resources"]["overrides"].keys() - {"namespace"}
        assert rule["resources"]["overrides"][label] == {"group": names.GROUP, "resource": names.KIND.lower()}
        assert f'{label}!=""' in rule["seriesQuery"]
        (target,) = access.pod_monitor(context(merged(MINIMAL, monitoring={"enabled": True})))["spec"][
            "podTargetLabels"
        ]
        assert re.sub(r"[^a-zA-Z0-9_]", "_", target) == label, "the Prometheus operator replaces other characters"
        assert re.fullmatch(
            r"(sum|avg)\(<<\.Series>>\{<<\.LabelMatchers>>\}\) by \(<<\.GroupBy>>\)", rule["metricsQuery"]
        )
    wanted = [metric["object"]["metric"]["name"] for metric in rendered(**FULL)["spec"]["metrics"]]
    assert sorted(offered) == sorted(wanted)
    assert offered[hpa.QUEUE_METRIC]["metricsQuery"].startswith("sum(")
    assert offered[hpa.CACHE_METRIC]["metricsQuery"].startswith("avg(")
    assert offered[hpa.RUNNING_METRIC]["metricsQuery"].startswith("sum(")
