"""The condition ModelReady: before, during and after a download."""

from __future__ import annotations

from typing import Any

import pytest
from orca_contract.reasons import Reason
from orca_contract.state import PipelinePhase
from orca_operator import names
from orca_operator.diagnose import look
from orca_operator.manifests.model import FETCH_CONTAINER
from orca_operator.model_condition import model_ready
from orca_operator.observe import Object, Observed
from support.orcadeployments import MINIMAL, NOW, context, pod, report

FETCHED = context({"model": {"uri": "hf://a/b"}})
REASON = "PodUnschedulable"


def worker(state: dict[str, Any] | None, **status: Any) -> Object:
    """Return a worker whose init container has this state, and whose other containers do not run."""
    fetch = [] if state is None else [{"name": FETCH_CONTAINER, "image": "image", "state": state}]
    return pod(FETCHED, initContainerStatuses=fetch, containerStatuses=[], **status)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([], ("False", REASON)),
        ([worker(None)], ("False", REASON)),
        ([pod(FETCHED, names.MASTER)], ("False", REASON)),
        ([worker({"waiting": {"reason": "PodInitializing"}})], ("False", "ModelDownloading")),
        ([worker({"running": {}})], ("False", "ModelDownloading")),
        ([worker({"terminated": {"exitCode": 1}})], ("False", "ModelDownloadFailed")),
        ([worker({"terminated": {"exitCode": 0}})], ("True", "Present")),
        ([pod(FETCHED)], ("True", "Present")),
        ([pod(FETCHED), worker(None)], ("True", "Present")),
    ],
    ids=["no pod", "pending", "only the master", "begins", "runs", "failed", "succeeded", "worker runs", "one runs"],
)
def test_the_model_is_present_when_a_worker_has_downloaded_it(pods, expected):
    holds, reason, message = model_ready(
        FETCHED.spec, look(Observed(tuple(pods)), NOW), FETCHED.revision, desired=1, reason=REASON
    )
    assert (str(holds), reason) == expected
    assert "hf://a/b" in message or reason.startswith("ModelDownload")


@pytest.mark.parametrize(
    ("pods", "message"),
    [
        ([], "no worker pod exists that could download hf://a/b"),
        ([pod(FETCHED, names.MASTER)], "no worker pod exists that could download hf://a/b"),
        ([worker(None)], "no worker pod that exists has downloaded hf://a/b"),
    ],
    ids=["no pod", "only the master", "pending"],
)
def test_a_revision_without_workers_is_not_said_to_lack_the_model(pods, message):
    """Its pods may have had the model, and may have been stopped since, as by `maxRestarts`."""
    view = look(Observed(tuple(pods)), NOW)
    assert model_ready(FETCHED.spec, view, FETCHED.revision, 1, REASON) == (False, REASON, message)


@pytest.mark.parametrize(("deployment", "desired"), [(FETCHED, 0), (context(MINIMAL), 1)], ids=["no pipeline", "file"])
def test_nothing_is_to_be_downloaded(deployment, desired):
    view = look(Observed(), NOW)
    assert model_ready(deployment.spec, view, deployment.revision, desired, REASON)[:2] == (True, "Present")


@pytest.mark.parametrize("phase", [PipelinePhase.RECOVERING, PipelinePhase.SERVING])
def test_workers_with_different_weights_do_not_have_the_model(phase):
    """Until their pipeline serves; the message is the master's."""
    said = report(FETCHED, phase, reason=Reason.DIFFERENT_WEIGHTS.value, message="partition 0 and partition 1 differ")
    view = look(Observed((pod(FETCHED),), {FETCHED.revision: said}), NOW)
    holds, reason, message = model_ready(FETCHED.spec, view, FETCHED.revision, 1, REASON)
    if phase is PipelinePhase.SERVING:
        assert (holds, reason) == (True, "Present")
    else:
        assert (holds, reason) == (False, "DifferentWeights")
        assert "partition 0 and partition 1 differ" in message
