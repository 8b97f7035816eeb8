"""Values of a spec that the operator replaces: each is named, and none of those that objects have."""

from __future__ import annotations

from typing import Any

import pytest
from orca_operator import names
from orca_operator.manifests.access import pod_monitor
from orca_operator.manifests.master import master_deployment
from orca_operator.manifests.services import client_service
from orca_operator.manifests.workers import worker_stateful_sets
from orca_operator.overwritten import overwritten
from orca_operator.pod_overlay import RESERVED_LABELS
from support.orcadeployments import MINIMAL, context, merged

GPUS = "spec.worker.resources: nvidia.com/gpu is 2 and not 4, by parallelism.tensorParallelSize"
RDMA = "spec.worker.resources: rdma/hca is 1 and not 2, by communication.rdmaResource: one device per pod"
HUGE = "1e99999999999999999999"
LABELS = dict.fromkeys(sorted(RESERVED_LABELS), "mine") | {"team": "a", names.VERSION_LABEL: "mine"}


def test_the_labels_that_objects_do_not_have_are_named():
    fields = {place: {"labels": LABELS} for place in ("master", "worker", "service")}
    demo = context(merged(MINIMAL, **fields, monitoring={"enabled": True, "labels": LABELS}))
    objects = {
        "master": master_deployment(demo)["spec"]["template"],
        "worker": worker_stateful_sets(demo)[0]["spec"]["template"],
        "service": client_service(demo),
        "monitoring": pod_monitor(demo),
    }
    assert overwritten("demo", demo.spec) == [
        f"spec.{place}.labels: the operator sets {key}: use another key"
        for place, made in objects.items()
        for key, value in sorted(LABELS.items())
        if made["metadata"]["labels"].get(key, value) != value
    ]


def test_a_label_with_the_operators_value_or_of_no_object_is_not_named():
    own = {"labels": {names.PART_OF_LABEL: "orca", names.INSTANCE_LABEL: "demo"}}
    demo = context(merged(MINIMAL, worker=own, service=own, monitoring={"enabled": False, "labels": LABELS}))
    assert overwritten("demo", demo.spec) == []


@pytest.mark.parametrize(
    ("resources", "sentences"),
    [
        ({"limits": {"nvidia.com/gpu": 4}, "requests": {"nvidia.com/gpu": "4"}}, [GPUS]),
        ({"limits": {"nvidia.com/gpu": 2, "memory": "8Gi"}, "requests": {"rdma/hca": 1}}, []),
        ({"limits": {"nvidia.com/gpu": "2000m"}, "requests": {"nvidia.com/gpu": "2e0", "rdma/hca": "1000m"}}, []),
        ({"limits": {"nvidia.com/gpu": "4"}, "requests": {"nvidia.com/gpu": "2000m"}}, [GPUS]),
        ({"limits": {"nvidia.com/gpu": HUGE}}, [GPUS.replace("not 4", f"not {HUGE}")]),
        ({"requests": {"rdma/hca": 2}}, [RDMA]),
    ],
)
def test_devices_of_another_amount_are_named_with_the_field_that_counts(resources, sentences):
    spec = {"parallelism": {"tensorParallelSize": 2}, "communication": {"rdmaResource": "rdma/hca"}}
    demo = context(merged(MINIMAL, **spec, worker={"resources": resources}, master={"resources": resources}))
    assert overwritten("demo", demo.spec) == sentences


def test_pods_without_devices_of_the_operator_keep_their_own():
    given: dict[str, Any] = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    demo = context(merged(MINIMAL, communication={"backend": "gloo"}, worker=given))
    assert overwritten("demo", demo.spec) == []
