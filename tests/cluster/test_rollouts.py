"""Broken edits under streams through the Service: what serves is left alone, and the edit back restarts nothing."""

from __future__ import annotations

from typing import Any

import pytest
from support.edits import POLL_SECONDS, edit, ready, serves, staying, take_effect
from support.kubernetes import Namespace, demo_spec, eventually, worker_settings
from support.pod_streams import streams_go_on

CAUSE_SECONDS = 30
"""From an edit to its cause in the status."""
BACK_SECONDS = 120
"""From the way back to the deletion of the broken revision's pods."""
SETTINGS = worker_settings(resources={"requests": {"cpu": "10m", "memory": "256Mi"}})
SPEC = demo_spec(model={"uri": "file:///models/demo", "dtype": "float32"}, worker=SETTINGS)
BROKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "image": ("ImagePullFailed", {"worker": {"image": "localhost/orca-worker:no-such-tag"}}),
    "model": ("InvalidSpec", {"model": {"uri": "file:///models/none"}}),
    "toleration": ("InvalidSpec", {"worker": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}}),
    "node": ("PodUnschedulable", {"worker": {"nodeSelector": {"no": "such-node"}}}),
    "priority class": ("PodCreationFailed", {"worker": {"priorityClassName": "nobody-has-this"}}),
    "secret": ("VolumeMountFailed", {"auth": {"apiKeySecretRef": {"name": "no-such-secret"}}}),
    "partitions": ("InvalidSpec", {"parallelism": {"pipelineParallelSize": 9}}),
    "quota": ("QuotaExceeded", {"restart": {"id": "over the quota"}}),
}
"""Edits by what they break, with the reason that the status has to name.

The API server rejects the toleration; all others are found out by Kubernetes or by the master.
"""


@pytest.mark.parametrize(
    "broken", [name if name == "model" else pytest.param(name, marks=pytest.mark.long) for name in BROKEN]
)
def test_a_broken_edit_changes_nothing_that_serves(namespace: Namespace, broken: str):
    reason, changes = BROKEN[broken]
    namespace.deploy(SPEC)
    namespace.wait_ready()
    with streams_go_on(namespace) as numbers:
        serving = staying(namespace)
        if broken == "quota":
            namespace.apply(quota(len(namespace.items("pods"))))
        named = take_effect(namespace, changes, lambda status: ready(status)["reason"] == reason, CAUSE_SECONDS)
        assert ready(namespace.get("orca", "demo")["status"])["status"] == "False"
        assert serving <= staying(namespace), "nothing that serves is deleted"
        back = take_effect(namespace, removed(changes, SPEC), serves, BACK_SECONDS)
        ended = eventually(lambda: staying(namespace) == serving, BACK_SECONDS, POLL_SECONDS)
        assert ended, f"nothing is restarted: {staying(namespace)} were {serving}"
    assert min(numbers) >= 1
    assert min(named.fewest, back.fewest) >= 1
    print(f"{broken}: {reason} after {named.seconds:.1f} s; {back.seconds:.1f} s back; at least {named.fewest} served")


def quota(number: int) -> dict[str, Any]:
    """Return a ResourceQuota without room for another pod."""
    hard = {"hard": {"pods": str(number)}}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": hard}


def removed(changes: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Return the merge patch that takes changes back: the values of `spec`, null for a field that it lacks."""
    return {
        name: removed(value, spec[name]) if isinstance(value, dict) and name in spec else spec.get(name)
        for name, value in changes.items()
    }


@pytest.mark.long
def test_a_pod_setting_is_edited_while_a_broken_edit_is_stuck(namespace: Namespace):
    """The way forward needs no way back: the third revision replaces the first, and the second one goes."""
    namespace.deploy(SPEC)
    namespace.wait_ready()
    with streams_go_on(namespace) as numbers:
        before = staying(namespace)
        reason, changes = BROKEN["image"]
        take_effect(namespace, changes, lambda status: ready(status)["reason"] == reason, CAUSE_SECONDS)
        broken = staying(namespace) - before
        edit(namespace, removed(changes, SPEC) | {"restart": {"id": "2"}})
        assert eventually(lambda: not (before | broken) & staying(namespace), BACK_SECONDS, POLL_SECONDS)
        namespace.wait_ready()
    assert min(numbers) >= 1
