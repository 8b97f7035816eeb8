"""ScalingReady: what the autoscaler says of itself, and why there is none."""

from __future__ import annotations

import pytest
from orca_operator.api import Spec
from orca_operator.diagnose import LONGEST_MESSAGE
from orca_operator.observe import Observed
from orca_operator.scaling import KINDS, not_implemented, replaced_kind, scaling_ready, wanted_autoscaler
from support.orcadeployments import MINIMAL, context, live, merged


def spec(backend: str = "hpa", **changes) -> Spec:
    return context(merged(MINIMAL, autoscaling={"backend": backend, "maxReplicas": 4}, **changes)).spec


def reporting(backend: str = "hpa", /, **conditions: tuple[str, str, str]) -> Observed:
    """Return the autoscaler with conditions: status, reason and message by type."""
    (manifest,) = wanted_autoscaler(context(merged(MINIMAL, autoscaling={"backend": backend, "maxReplicas": 4})))
    entries = [
        {"type": kind, "status": status, "reason": reason, "message": message}
        for kind, (status, reason, message) in conditions.items()
    ]
    return Observed(({**live(manifest), "status": {"conditions": entries}},))


ABLE = ("True", "ReadyForNewScale", "recommended size matches current size")
ACTIVE = ("True", "ValidMetricFound", "the HPA was able to successfully calculate a replica count")
LIMITED = ("True", "TooManyReplicas", "the desired replica count is more than the maximum replica count")
READY = ("True", "ScaledObjectReady", "ScaledObject is defined correctly and is ready for scaling")


@pytest.mark.parametrize(
    ("backend", "conditions", "expected"),
    [
        ("hpa", {"AbleToScale": ABLE, "ScalingActive": ACTIVE}, (True, "Autoscaling", "from 1 to 4")),
        ("hpa", {"AbleToScale": ABLE, "ScalingActive": ACTIVE, "ScalingLimited": ("False", "", "in range")},
         (True, "Autoscaling", "from 1 to 4")),
        ("hpa", {"AbleToScale": ABLE, "ScalingActive": ACTIVE, "ScalingLimited": LIMITED},
         (True, "Autoscaling", "more than the maximum replica count")),
        ("hpa", {"AbleToScale": ABLE, "ScalingActive": ("False", "FailedGetObjectMetric", "no metrics returned")},
         (False, "FailedGetObjectMetric", "HorizontalPodAutoscaler demo: no metrics returned")),
        ("hpa", {"AbleToScale": ("False", "FailedGetScale", "not found"), "ScalingActive": ACTIVE},
         (False, "FailedGetScale", "not found")),
        ("hpa", {"AbleToScale": ("False", "FailedGetScale", "not found")}, (False, "FailedGetScale", "not found")),
        ("hpa", {"AbleToScale": ABLE, "ScalingActive": ("Unknown", "", "")},
         (False, "ScalingActive", "ScalingActive is Unknown")),
        ("hpa", {"AbleToScale": ABLE}, (False, "AutoscalerPending", "has not reported yet")),
        ("hpa", {}, (False, "AutoscalerPending", "has not reported yet")),
        ("keda", {"Ready": READY}, (True, "Autoscaling", "ScaledObject demo sets spec.replicas, from 1 to 4")),
        ("keda", {"Ready": READY, "Fallback": ("False", "NoFallbackFound", "no fallbacks")},
         (True, "Autoscaling", "ScaledObject demo")),
        ("keda", {"Ready": READY, "Fallback": ("True", "FallbackExists", "at least one trigger is falling back")},
         (False, "FallbackExists", "at least one trigger is falling back")),
        ("keda", {"Ready": ("False", "TriggerError", "triggers do not work")},
         (False, "TriggerError", "ScaledObject demo: triggers do not work")),
        ("keda", {"Ready": ("Unknown", "", "")}, (False, "Ready", "Ready is Unknown")),
        ("keda", {"Active": ("True", "", "")}, (False, "AutoscalerPending", "has not reported yet")),
    ],
)  # fmt: skip
def test_the_autoscalers_own_words(backend, conditions, expected):
    holds, reason, words = expected
    found = scaling_ready("demo", spec(backend), reporting(backend, **conditions), (), "", False)
    assert found[:2] == (holds, reason)
    assert words in found[2]


def test_without_autoscaling_replicas_are_the_users():
    verdict = (True, "Scalable", "spec.replicas and the scale subresource take effect")
    assert scaling_ready("demo", context().spec, Observed(), (), "", False) == verdict
    assert scaling_ready("demo", None, Observed(), (), "", False)[:2] == (False, "InvalidSpec")


@pytest.mark.parametrize(
    ("backend", "skipped", "words"),
    [
        ("keda", "keda.sh/v1alpha1 ScaledObject", ["does not serve keda.sh/v1alpha1 ScaledObject", "install KEDA"]),
        ("hpa", "autoscaling/v2 HorizontalPodAutoscaler", ["autoscaling/v2 HorizontalPodAutoscaler", "since 1.23"]),
    ],
)
def test_a_kind_that_the_cluster_lacks_has_a_way_out(backend, skipped, words):
    found = scaling_ready(
        "demo", spec(backend), Observed(), ("monitoring.coreos.com/v1 PodMonitor", skipped), "", False
    )
    assert found[:2] == (False, "KindNotServed")
    assert all(word in found[2] for word in words)
    assert scaling_ready("demo", spec(backend), Observed(), ("v1 PodMonitor",), "", False)[1] == "AutoscalerPending"


def test_a_rejection_is_quoted():
    found = scaling_ready(
        "demo", spec(), reporting(AbleToScale=ABLE, ScalingActive=ACTIVE), (), "denied by policy", False
    )
    assert found == (False, "AutoscalerRejected", "denied by policy")


def test_a_suspended_deployment_is_not_scaled():
    found = scaling_ready("demo", spec(suspend=True), reporting(), (), "", False)
    assert found[:2] == (False, "Suspended")


@pytest.mark.parametrize(("backend", "other"), [("hpa", "keda"), ("keda", "hpa")])
def test_an_autoscaler_waits_for_the_end_of_the_other_one(backend, other):
    wanted = context(merged(MINIMAL, autoscaling={"backend": backend}))
    assert replaced_kind(wanted, reporting(other)) == KINDS[other]
    assert replaced_kind(wanted, reporting(backend)) == ""
    assert replaced_kind(context(), reporting(other)) == ""
    found = scaling_ready("demo", wanted.spec, reporting(other), (), "", False)
    assert found == (
        False,
        "AutoscalerPending",
        f"{KINDS[backend]} demo is created as soon as {KINDS[other]} demo is deleted",
    )


def test_an_idle_count_of_keda_is_named_with_the_way_out():
    autoscaling = {"backend": "keda", "minReplicas": 1, "keda": {"idleReplicaCount": 0}}
    zero = context(merged(MINIMAL, autoscaling=autoscaling)).spec
    field = "autoscaling.keda.idleReplicaCount: 0 (spec.autoscaling.minReplicas: 0 scales to zero)"
    assert not_implemented(zero) == [field]
    found = scaling_ready("demo", zero, reporting("keda", Ready=READY), (), "", False)
    note = f"; not implemented yet: spec.{field}"
    assert found[:2] == (True, "Autoscaling")
    assert found[2].endswith(note)
    long = scaling_ready("demo", zero, Observed(), (), "x" * 5000, False)[2]
    assert long.endswith(note)
    assert len(long) == LONGEST_MESSAGE
    assert not_implemented(context().spec) == []


def test_without_pipelines_an_hpa_finds_no_pods_and_that_is_no_failure():
    spec = context(merged(MINIMAL, autoscaling={"minReplicas": 0, "maxReplicas": 4})).spec
    observed = reporting(AbleToScale=ABLE, ScalingActive=("False", "FailedGetObjectMetric", "no pods returned"))
    assert scaling_ready("demo", spec, observed, (), "", True)[:2] == (True, "ScaledToZero")
    assert scaling_ready("demo", spec, observed, (), "", False)[:2] == (False, "FailedGetObjectMetric")
    assert scaling_ready("demo", spec, observed, (), "denied", True)[:2] == (False, "AutoscalerRejected")


@pytest.mark.parametrize(
    ("backend", "conditions", "reason"),
    [
        ("hpa", {"AbleToScale": ("False", "FailedGetScale", "forbidden"), "ScalingActive": ABLE}, "FailedGetScale"),
        ("hpa", {"AbleToScale": ABLE, "ScalingActive": ("False", "ScalingDisabled", "0")}, "ScalingDisabled"),
        ("keda", {"Ready": ("False", "ScaledObjectCheckFailed", "no HPA")}, "ScaledObjectCheckFailed"),
    ],
)
def test_an_autoscaler_that_fails_is_no_less_a_failure_without_pipelines(backend, conditions, reason):
    """Nothing else would add a second pipeline."""
    spec = context(merged(MINIMAL, autoscaling={"backend": backend, "minReplicas": 0, "maxReplicas": 4})).spec
    assert scaling_ready("demo", spec, reporting(backend, **conditions), (), "", True)[:2] == (False, reason)
