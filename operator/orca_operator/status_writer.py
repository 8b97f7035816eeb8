"""`StatusWriter`: writes the status of one OrcaDeployment if it differs, and Events about changes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from orca_operator import names
from orca_operator.cluster import Cluster, ClusterError
from orca_operator.events import Announcer
from orca_operator.observe import Object
from orca_operator.repairs import Repairs
from orca_operator.status import merge_patch

REPEAT_SECONDS = 600.0
"""Interval of writes of a status of which the API server keeps only a part."""
TRIES = 3
"""Attempts to write a status while other clients change the OrcaDeployment."""
PLACE = ("OrcaDeployment", "status")


class StatusWriter:
    """Methods block. `skipped`: kinds that the cluster does not serve, and of which an Event has told."""

    def __init__(self, cluster: Cluster) -> None:
        self.skipped: tuple[str, ...] = ()
        self._cluster = cluster
        self._announcer = Announcer(cluster)
        self._refused_generation = 0
        self._answered: tuple[Mapping[str, Any], Mapping[str, Any]] = {}, {}
        """The last status that was written, and what the API server has stored of it."""
        self._written_at = float("-inf")
        self._repairs = Repairs()

    def announce_skipped(self, resource: Object, kinds: Sequence[str]) -> None:
        """Write an Event for each kind that is skipped from now on."""
        skipped = tuple(sorted(kinds))
        for kind in set(skipped) - set(self.skipped):
            message = f"this cluster does not serve {kind}, which is skipped"
            self._announcer.announce(resource, "Warning", "KindNotServed", message)
        self.skipped = skipped

    def write(self, resource: Object, status: dict[str, Any], previous: Mapping[str, Any]) -> Object | None:
        """Patch the status if it changed, and write an Event if the reason of Ready changed.

        Returns the OrcaDeployment with this status (`resource` itself if nothing is written), None if it no longer
        exists, also if another one has its name by now. Raises ClusterError.

        A CRD that is older than the operator makes the API server drop newer fields: the status that it has stored then
        differs for ever, and is written again after REPEAT_SECONDS only, because the CRD may have been replaced.
        Servers before 1.30 reject every status (422) while the stored spec is invalid under a newer CRD. Then only the
        Event has the reason; one Event per generation is written.
        A status that an operator of another version keeps changing back is written less and less often (repairs.py).
        """
        if status == previous or self._is_stored(status, previous):
            return resource
        content, (before, stored) = _timeless(status), self._answered
        is_repair = content == _timeless(before) and previous != stored
        if is_repair and self._repairs.is_early(PLACE, content):
            return resource
        generation = resource["metadata"]["generation"]
        try:
            written = self._patch(resource, merge_patch(status, previous))
        except ClusterError as error:
            if error.status == HTTPStatus.UNPROCESSABLE_ENTITY and self._refused_generation != generation:
                self._refused_generation = generation
                self._announcer.announce_change(resource, status, previous)
            raise
        if written is None:
            return None
        self._answered, self._written_at = (status, written.get("status") or {}), time.monotonic()
        if is_repair:
            self._repairs.note(PLACE, content)
        self._announcer.announce_change(resource, status, previous)
        return written

    def _patch(self, resource: Object, patch: dict[str, Any]) -> Object | None:
        """Patch the status of this OrcaDeployment; return None if it no longer exists, or has a successor of its name.

        A conflict with an edit is no reason to drop the status: after a read it is written to the newer version.
        """
        tries = TRIES
        while True:
            metadata = resource["metadata"]
            place = metadata["namespace"], metadata["name"]
            try:
                return self._cluster.patch_status(*place, patch, metadata["resourceVersion"])
            except ClusterError as error:
                tries -= 1
                if error.status == HTTPStatus.NOT_FOUND:
                    return None
                if error.status != HTTPStatus.CONFLICT or not tries:
                    raise
            latest = self._cluster.get(names.KIND, *place)
            if latest is None or latest["metadata"]["uid"] != metadata["uid"]:
                return None
            resource = latest

    def _is_stored(self, status: Mapping[str, Any], previous: Mapping[str, Any]) -> bool:
        """Whether the API server has stored as much of this status as it keeps."""
        written, stored = self._answered
        is_recent = time.monotonic() - self._written_at < REPEAT_SECONDS
        return is_recent and stored == previous and _timeless(written) == _timeless(status)


def _timeless(status: Mapping[str, Any]) -> str:
    """Return a status without the times at which something began: what another client removed begins anew."""
    conditions = [{**entry, "lastTransitionTime": None} for entry in status.get("conditions") or []]
    pipelines = [{**entry, "restartsSince": None} for entry in status.get("pipelines") or []]
    return json.dumps({**status, "conditions": conditions, "pipelines": pipelines}, sort_keys=True)
