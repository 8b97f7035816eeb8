"""Kubernetes Events of an OrcaDeployment: a new reason of `Ready`, a journal that cannot be written, kinds that the
cluster does not serve, a pod that was deleted by force, or a pipeline whose pods were replaced.

A repeated Event counts the first one up, as Kubernetes' own components do: one Event for each reason of `Ready`, with
the last message, and one for each message of other reasons. Kubernetes deletes an Event an hour after its last write.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from orca_contract.reasons import Reason

from orca_operator.actions import ForceDelete, Replace
from orca_operator.cluster import Cluster, ClusterError
from orca_operator.conditions import find_condition, rfc3339
from orca_operator.journal_condition import JOURNAL_OFF
from orca_operator.manifests.context import Owner
from orca_operator.names import API_VERSION, FIELD_MANAGER, KIND
from orca_operator.observe import Object, name_of

logger = logging.getLogger(__name__)

ALREADY_EXISTS = 409
LONGEST_NOTE = 1000
NORMAL = {
    Reason.SERVING, Reason.SUSPENDED, Reason.SCALED_TO_ZERO, Reason.MODEL_DOWNLOADING, Reason.ROLLING_UPDATE,
    Reason.LOADING_WEIGHTS,
}  # fmt: skip


class Announcer:
    """Writes Events. A failed write is only logged."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def announce_change(self, resource: Object, status: Mapping[str, Any], previous: Mapping[str, Any]) -> None:
        """Write an Event if the reason of `Ready` has changed, and one if the journal can no longer be written."""
        ready, before = find_condition(status, "Ready"), find_condition(previous, "Ready")
        if ready["reason"] != before.get("reason"):
            kind = "Normal" if ready["reason"] in {reason.value for reason in NORMAL} else "Warning"
            self.announce(resource, kind, ready["reason"], ready["message"], distinct=False)
        journal, before = find_condition(status, "JournalReady"), find_condition(previous, "JournalReady")
        if journal.get("reason") == JOURNAL_OFF != before.get("reason"):
            self.announce(resource, "Warning", JOURNAL_OFF, journal["message"])

    def announce_forced(self, owner: Owner, deletion: ForceDelete) -> None:
        """Write an Event about a pod that was deleted by force."""
        message = f"{name_of(deletion.pod)}: node {deletion.node} is lost since {rfc3339(deletion.since)}"
        self.announce(_about(owner), "Warning", "PodForceDeleted", message)

    def announce_replaced(self, owner: Owner, replacement: Replace) -> None:
        """Write an Event about a pipeline whose pods were deleted, so that Kubernetes creates them anew."""
        message = f"all pods of pipeline {replacement.pipeline}: no progress since {rfc3339(replacement.since)}"
        self.announce(_about(owner), "Warning", "PipelineReplaced", message)

    def announce(self, resource: Object, kind: str, reason: str, message: str, distinct: bool = True) -> None:
        """Write one Event about an OrcaDeployment; `kind` is Normal or Warning.

        `distinct`: Events of this reason with other messages stay beside this one.
        """
        metadata, now = resource["metadata"], rfc3339(datetime.now(UTC))
        identity = "\n".join((metadata["uid"], kind, reason, message if distinct else ""))
        name = f"{metadata['name']}.{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message[:LONGEST_NOTE],
            "source": {"component": FIELD_MANAGER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._write(event)
        except ClusterError as error:
            logger.warning("%s/%s: cannot write Event %s: %s", metadata["namespace"], metadata["name"], reason, error)

    def _write(self, event: dict[str, Any]) -> None:
        """Create an Event, or count the present one up; raise ClusterError."""
        try:
            self._cluster.create(event)
        except ClusterError as error:
            if error.status != ALREADY_EXISTS:
                raise
        else:
            return
        namespace, name = event["metadata"]["namespace"], event["metadata"]["name"]
        present = self._cluster.get("Event", namespace, name) or {}
        again = {
            "count": (present.get("count") or 0) + 1,
            **{field: event[field] for field in ("message", "lastTimestamp")},
        }
        self._cluster.merge("Event", namespace, name, again)


def _about(owner: Owner) -> Object:
    return {"metadata": {"name": owner.name, "namespace": owner.namespace, "uid": owner.uid}}
