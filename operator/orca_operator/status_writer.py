"""`StatusWriter`: writes the status of one OrcaDeployment if it differs, and Events about changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orca_operator.cluster import Cluster, ClusterError
from orca_operator.events import Announcer
from orca_operator.observe import Object
from orca_operator.status import merge_patch


class StatusWriter:
    """Methods block. `skipped`: kinds that the cluster does not serve, and of which an Event has told."""

    def __init__(self, cluster: Cluster) -> None:
        self.skipped: tuple[str, ...] = ()
        self._cluster = cluster
        self._announcer = Announcer(cluster)
        self._refused_generation = 0

    def announce_skipped(self, resource: Object, kinds: Sequence[str]) -> None:
        """Write an Event for each kind that is skipped from now on."""
        skipped = tuple(sorted(kinds))
        for kind in set(skipped) - set(self.skipped):
            message = f"this cluster does not serve {kind}, which is skipped"
            self._announcer.announce(resource, "Warning", "KindNotServed", message)
        self.skipped = skipped

    def write(self, resource: Object, status: dict[str, Any], previous: Mapping[str, Any]) -> Object | None:
        """Patch the status if it changed, and write an Event if the reason of Ready changed.

        Returns the OrcaDeployment with this status, None if it no longer exists. Raises ClusterError.

        Servers before 1.30 reject every status (422) while the stored spec is invalid under a newer CRD. Then only the
        Event has the reason; one Event per generation is written.
        """
        if status == previous:
            return resource
        metadata = resource["metadata"]
        patch = merge_patch(status, previous)
        try:
            written = self._cluster.patch_status(metadata["namespace"], metadata["name"], patch)
        except ClusterError as error:
            if error.status == 404:  # deleted meanwhile
                return None
            if error.status == 422 and self._refused_generation != metadata["generation"]:
                self._refused_generation = metadata["generation"]
                self._announcer.announce_change(resource, status, previous)
            raise
        self._announcer.announce_change(resource, status, previous)
        return written
