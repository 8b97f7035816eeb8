"""Fields that an API server with a closed feature gate drops: noticed in the dry run, before anything is written."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from orca_operator.dropped_fields import check_kept
from orca_operator.manifests.workers import worker_stateful_sets
from orca_operator.validation import InvalidSpecError
from support.orcadeployments import MINIMAL, context, merged

SPEC = merged(
    MINIMAL,
    worker={
        "placement": {"policy": "spread"},
        "volumes": [{"name": "weights", "image": {"reference": "weights:1"}}],
        "podTemplate": {
            "spec": {
                "resourceClaims": [{"name": "gpus", "resourceClaimName": "gpus"}],
                "schedulingGroup": {"podGroupName": "demo"},
            }
        },
    },
)
Pod = dict[str, Any]


def terms(pod: Pod) -> Pod:
    return pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]


def sent() -> dict[str, Any]:
    return worker_stateful_sets(context(SPEC))[0]


def test_an_answer_with_all_fields_is_accepted_whatever_the_server_adds():
    answer = copy.deepcopy(sent())
    pod = answer["spec"]["template"]["spec"]
    pod |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
    pod["volumes"].insert(0, {"name": "injected", "emptyDir": {}})
    del pod["enableServiceLinks"]
    check_kept(sent(), answer)


def test_a_term_that_a_webhook_inserts_is_not_taken_for_the_one_behind_it():
    answer = copy.deepcopy(sent())
    pod = answer["spec"]["template"]["spec"]
    anti_affinity = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    anti_affinity.insert(0, {"topologyKey": "zone", "labelSelector": {}})
    check_kept(sent(), answer)
    anti_affinity[0] = {key: value for key, value in anti_affinity[1].items() if key != "matchLabelKeys"}
    check_kept(sent(), answer)
    del anti_affinity[1]["matchLabelKeys"]
    with pytest.raises(InvalidSpecError, match=r"drops .*matchLabelKeys"):
        check_kept(sent(), answer)


@pytest.mark.parametrize(
    ("drop", "path", "need"),
    [
        (lambda pod: pod.update(volumes=pod["volumes"][:-1]), r"volumes\[\d\]\.image", "ImageVolume"),
        (lambda pod: pod["volumes"][-1].pop("image"), r"volumes\[\d\]\.image", "ImageVolume"),
        (lambda pod: terms(pod).pop("matchLabelKeys"), r"affinity\..*\[0\]\.matchLabelKeys", "1.31"),
        (lambda pod: pod.pop("resourceClaims"), "resourceClaims", "1.34"),
        (lambda pod: pod.pop("schedulingGroup"), "schedulingGroup", "GenericWorkload"),
    ],
)
def test_a_dropped_field_is_named_with_what_it_needs(drop: Callable[[Pod], Any], path, need):
    answer = copy.deepcopy(sent())
    drop(answer["spec"]["template"]["spec"])
    name = sent()["metadata"]["name"]
    with pytest.raises(
        InvalidSpecError, match=rf"^StatefulSet {name}: .* drops spec\.template\.spec\.{path}: .*{need}"
    ):
        check_kept(sent(), answer)
