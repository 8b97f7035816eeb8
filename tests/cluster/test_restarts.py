"""A worker that ends at every start: all pods of its pipeline are replaced, then its revision is stopped."""

from __future__ import annotations

from support.edits import edit
from support.kubernetes import Namespace, demo_spec, eventually, worker_settings

MOST = 4
POLICY = {"recoveryTimeoutSeconds": 10, "maxRestarts": MOST, "restartWindowSeconds": 3600}
NO_PYTHON = [{"name": "PYTHONHOME", "value": "/nowhere"}]
SECONDS = 150
"""Kubernetes restarts a container at once, and then after 10, 20 and 40 s."""


def test_a_pipeline_without_progress_is_replaced_and_given_up_until_the_repair(namespace: Namespace):
    namespace.deploy(demo_spec(worker=worker_settings(env=NO_PYTHON), recoveryPolicy=POLICY))
    condition = namespace.wait_reason("RestartBudgetExceeded", SECONDS)
    reasons = [event["reason"] for event in namespace.items("events")]
    assert "PipelineReplaced" in reasons, "it is replaced before it is given up"
    assert "exit code 1" in condition["message"]
    assert eventually(lambda: not namespace.workers(), 60)
    status = namespace.get("orca", "demo")["status"]
    assert status["stopped"]["restarts"] > MOST
    assert namespace.condition("Failed")["status"] == "True"
    assert namespace.master(), "only the workers go"
    edit(namespace, {"worker": worker_settings()})
    namespace.wait_ready()
    assert eventually(lambda: "stopped" not in namespace.get("orca", "demo")["status"], 60), "the old revision is gone"
    assert namespace.condition("Failed")["status"] == "False"
