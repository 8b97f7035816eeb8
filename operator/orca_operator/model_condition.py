"""The condition ModelReady: whether pods of the spec's revision have the model, and all the same weights. Pure.

A download is known by its init container. A model of another source is there, or its pods show why they do not start.
"""

from __future__ import annotations

from orca_contract.reasons import Reason

from orca_operator import names
from orca_operator.api import Spec
from orca_operator.diagnose import FETCH_CONTAINER, View, diagnose_report
from orca_operator.manifests.model import model_source
from orca_operator.observe import Object, container_statuses, name_of, runs

FETCHING = (Reason.MODEL_DOWNLOADING, Reason.MODEL_DOWNLOAD_FAILED)


def model_ready(spec: Spec, view: View, revision: str, desired: int, reason: str) -> tuple[bool, str, str]:
    """Return status, reason and message of the condition.

    `desired`: number of pipelines; without any, no pod needs the model. `reason` is that of `Ready`.
    """
    for pod in view.observed.pods(revision=revision):
        diagnosis = view.diagnoses.get(name_of(pod))
        if diagnosis is not None and diagnosis.reason in FETCHING:
            return False, diagnosis.reason.value, diagnosis.message
    report = view.observed.reports.get(revision)
    for diagnosis in diagnose_report(report) if report is not None else []:
        if diagnosis.reason is Reason.DIFFERENT_WEIGHTS:
            return False, diagnosis.reason.value, diagnosis.message
    workers = view.observed.pods(names.WORKER, revision)
    if desired and model_source(spec).fetched and not any(map(_has_fetched, workers)):
        cause = "no worker pod that exists has downloaded" if workers else "no worker pod exists that could download"
        return False, reason, f"{cause} {spec.model.uri}"
    return True, "Present", spec.model.uri


def _has_fetched(pod: Object) -> bool:
    """Whether the download of a pod has succeeded; its other containers start after that."""
    ended = [
        container.get("state", {}).get("terminated") or {}
        for container in container_statuses(pod, "initContainerStatuses")
        if container["name"] == FETCH_CONTAINER
    ]
    return runs(pod) or any(state.get("exitCode") == 0 for state in ended)
