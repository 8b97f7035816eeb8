"""KEDA's ScaledObject: golden YAML, valid for the schema that KEDA documents, with triggers that a master answers."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import yaml
from orca_contract import routes
from orca_master.metrics.prometheus import Metrics
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.request import Request
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from orca_operator import names
from orca_operator.manifests import hpa, scaled_object, services
from orca_operator.scaling import wanted_autoscaler
from prometheus_client.parser import text_string_to_metric_families
from support.orcadeployments import MINIMAL, UID, context, merged

GOLDEN = Path(__file__).parent / "golden" / "autoscaling-keda.yaml"
SCHEMA = yaml.safe_load((Path(__file__).parent / "keda_scaledobject.yaml").read_text())
KEDA = {
    "pollingIntervalSeconds": 15,
    "idleReplicaCount": 1,
    "fallback": {"failureThreshold": 3, "replicas": 4, "behavior": "currentReplicasIfHigher"},
}
FULL = {
    "minReplicas": 2,
    "maxReplicas": 8,
    "scaleDownDelaySeconds": 120,
    "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]}},
    "keda": KEDA,
}


def rendered(deployment: dict | None = None, **autoscaling) -> dict:
    spec = merged(deployment or MINIMAL, autoscaling={"backend": "keda", **autoscaling})
    (manifest,) = wanted_autoscaler(context(spec))
    return manifest


def test_golden(golden):
    golden(GOLDEN, yaml.safe_dump(rendered(**FULL), sort_keys=True, width=120))


@pytest.mark.parametrize("autoscaling", [{}, FULL, {"keda": {}}], ids=["least", "all", "empty keda"])
def test_valid_for_the_documented_schema(autoscaling):
    jsonschema.validate(rendered(**autoscaling), SCHEMA)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("pollingIntervalSeconds",), 15),
        (("fallback", "failureTreshold"), 3),
        (("triggers", 0, "metadata", "targetValue"), 8),
        (("triggers", 0, "metadata", "metricName"), "queue"),
        (("triggers", 0, "metricType"), "Utilization"),
    ],
)
def test_the_schema_notices(path, value):
    broken = rendered(**FULL)
    *parents, last = path
    place = broken["spec"]
    for key in parents:
        place = place[key]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)


def test_it_targets_the_orcadeployment_which_owns_it():
    manifest = rendered()
    target = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "demo"}
    assert manifest["spec"]["scaleTargetRef"] == target
    (owner,) = manifest["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == (names.KIND, UID, True)
    assert manifest["metadata"]["labels"][names.DEPLOYMENT_LABEL] == "demo"


def test_the_fields_of_keda_are_passed_through():
    spec = rendered(**FULL)["spec"]
    assert {key: spec[key] for key in ("pollingInterval", "fallback", "cooldownPeriod")} == {
        "pollingInterval": 15,
        "fallback": KEDA["fallback"],
        "cooldownPeriod": 120,
    }
    assert not {"pollingInterval", "fallback"} & rendered()["spec"].keys()


def test_both_backends_have_the_same_bounds_and_policies():
    (other,) = wanted_autoscaler(context(merged(MINIMAL, autoscaling={**FULL, "keda": None})))
    spec = rendered(**FULL)["spec"]
    assert spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == other["spec"]["behavior"]
    bounds = (spec["minReplicaCount"], spec["maxReplicaCount"])
    assert bounds == (other["spec"]["minReplicas"], other["spec"]["maxReplicas"]) == (2, 8)


@pytest.mark.parametrize("idle", [0, 1])
def test_zero_and_an_idle_count_are_not_rendered(idle):
    """Without a pod no master exists, whose metrics alone could scale the deployment up again; KEDA supports only 0."""
    spec = rendered(minReplicas=0, keda={"idleReplicaCount": idle})["spec"]
    assert spec["minReplicaCount"] == 1
    assert "idleReplicaCount" not in spec


def test_keda_pauses_while_the_deployment_is_suspended():
    """Without pods the triggers fail; a fallback would then set `replicas`."""
    assert "annotations" not in rendered()["metadata"]
    paused = rendered(merged(MINIMAL, suspend=True))
    assert paused["metadata"]["annotations"] == {"autoscaling.keda.sh/paused": "true"}


@pytest.mark.parametrize(("percent", "target"), [(1, "0.01"), (80, "0.8"), (100, "1")])
def test_a_master_answers_the_triggers(percent, target):
    """A trigger finds the first sample of the family `valueLocation` at the URL."""
    metrics = Metrics("demo")
    snapshot = SimpleNamespace(
        topology=SimpleNamespace(pipelines=[]),
        num_waiting=7,
        cache_usage=0.25,
        num_running=1,
        expected_wait=0.0,
        formed=None,
        num_blocks=0,
    )
    metrics.watch(SimpleNamespace(snapshot=snapshot))
    families = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
    queue, cache, running = rendered(targetQueueDepth=5, targetKVCacheUsagePercent=percent)["spec"]["triggers"]
    found = [families[trigger["metadata"]["valueLocation"]] for trigger in (queue, cache, running)]
    assert [(family.type, [sample.value for sample in family.samples]) for family in found] == [
        ("gauge", [7]),
        ("gauge", [0.25]),
        ("gauge", [1]),
    ]
    assert (queue["metricType"], queue["metadata"]["targetValue"]) == ("AverageValue", "5")
    assert (cache["metricType"], cache["metadata"]["targetValue"]) == ("Value", target)
    service = services.client_service(context(MINIMAL))
    (port,) = service["spec"]["ports"]
    assert port["port"] == 80
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    for trigger in (queue, cache, running):
        assert trigger["metadata"]["url"] == f"http://{name}.{namespace}.svc{routes.METRICS}"
        assert trigger["metadata"]["format"] == "prometheus"


def test_the_names_for_the_adapter_are_those_of_the_master():
    """docs/how-to/autoscale.md: the adapter replaces the colon."""
    assert scaled_object.QUEUE_METRIC.replace(":", "_") == hpa.QUEUE_METRIC
    assert scaled_object.CACHE_METRIC.replace(":", "_") == hpa.CACHE_METRIC
    assert scaled_object.RUNNING_METRIC.replace(":", "_") == hpa.RUNNING_METRIC


def proposed(manifest: dict, replicas: int, waiting: int, usage: float, running: int) -> int:
    """Return the number of pipelines that KEDA's HPA proposes (k8s.io: algorithm details), without its tolerance."""
    values = {"num_requests_waiting": waiting, "kv_cache_usage_perc": usage, "num_requests_running": running}
    proposals = []
    for trigger in manifest["spec"]["triggers"]:
        metric = trigger["metadata"]["valueLocation"].removeprefix("orca:")
        ratio = values[metric] / float(trigger["metadata"]["targetValue"])
        proposals.append(math.ceil(ratio if trigger["metricType"] == "AverageValue" else ratio * replicas))
    return max(proposals)


@pytest.mark.parametrize(
    ("partitions", "running", "expected"), [(1, 96, 3), (1, 65, 3), (1, 64, 2), (2, 192, 3), (2, 128, 2)]
)
def test_pipelines_with_full_batches_stay_although_no_request_waits(partitions, running, expected):
    """Short requests fill batches and few K/V slots. Without these pipelines they would wait, and bring them back."""
    spec = merged(MINIMAL, scheduler={"maxBatchSize": 32}, parallelism={"pipelineParallelSize": partitions})
    assert proposed(rendered(spec, maxReplicas=8), 3, 0, 0.2, running) == expected


def num_waiting(pipelines: int, partitions: int, running: int, is_spare: bool) -> int:
    """Return how many of so many requests find no place in the batches of 32 of these pipelines."""
    config = SchedulerConfig(max_batch_size=32, n_workers=partitions, keeps_spare_iteration=is_spare)
    scheduler = Scheduler(config, RequestPool(1000, 1 << 20))
    for number in range(running):
        scheduler.pool.put_back(Request(f"r{number}", number, (1,), 100))
    in_flight: dict[str, list[Batch]] = {f"p{number}": [] for number in range(pipelines)}
    for name in in_flight:
        scheduler.add_pipeline(name, KvLedger(4000))
    for _ in range(3 * partitions):
        for name in [*in_flight] * (partitions + 1):
            if proposal := scheduler.select(name):
                in_flight[name].append(scheduler.dispatch(name, proposal))
        for batch in [batches.pop(0) for batches in in_flight.values() if batches]:
            scheduler.commit(batch, [0] * len(batch.requests))
    return len(scheduler.pool)


@pytest.mark.parametrize(("partitions", "is_spare"), [(1, False), (2, False), (2, True), (4, True)])
def test_no_pipeline_is_removed_that_the_queue_would_bring_back(partitions, is_spare):
    """The places of a spare iteration exist only for a full batch, and only with fcfs (spare_iteration.py)."""
    spec = merged(MINIMAL, scheduler={"maxBatchSize": 32}, parallelism={"pipelineParallelSize": partitions})
    manifest = rendered(spec, maxReplicas=8)
    for running in range(1, 3 * 32 * partitions + 1, 15):
        fewer = proposed(manifest, 3, 0, 0.2, running)
        then = num_waiting(fewer, partitions, running, is_spare)
        assert proposed(manifest, fewer, then, 0.2, running - then) <= fewer, running


def test_a_target_below_all_places_adds_pipelines_before_requests_wait():
    assert proposed(rendered(maxReplicas=8, targetBatchUsagePercent=50), 3, 0, 0.2, 96) == 6
    smallest = rendered(merged(MINIMAL, scheduler={"maxBatchSize": 1}), targetBatchUsagePercent=1)
    assert proposed(smallest, 1, 0, 0, 2) == 2
