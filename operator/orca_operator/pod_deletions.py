"""`PodDeletions`: deletes pods of lost nodes by force, and all pods of pipelines without progress.

A failed deletion does not end the pass, because a webhook may have run on the lost node. Events are written at once,
because a later action of the pass may fail.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from orca_operator.actions import ForceDelete, Replace
from orca_operator.cluster import Cluster, ClusterError
from orca_operator.events import Announcer
from orca_operator.manifests.context import Owner
from orca_operator.observe import name_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Deleted:
    """The number of deleted pods, and why others were not deleted."""

    count: int
    failures: tuple[str, ...] = ()


class PodDeletions:
    """Deletions of pods, which their StatefulSets replace. Methods block."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._announcer = Announcer(cluster)

    def force_delete(self, deletion: ForceDelete, owner: Owner) -> Deleted:
        """Delete a pod of a lost node by force."""
        name = name_of(deletion.pod)
        try:
            if not self._cluster.force_delete(owner.namespace, name, deletion.pod["metadata"]["uid"]):
                return Deleted(0)
        except ClusterError as error:
            return Deleted(0, (f"{name} on the lost node {deletion.node}: {error}",))
        logger.info("%s: deleted Pod %s of the lost node %s by force", owner.namespace, name, deletion.node)
        self._announcer.announce_forced(owner, deletion)
        return Deleted(1)

    def replace(self, replacement: Replace, owner: Owner) -> Deleted:
        """Delete the pods of a pipeline."""
        failures = []
        for pod in replacement.pods:
            try:
                self._cluster.delete("Pod", owner.namespace, name_of(pod), pod["metadata"]["uid"])
            except ClusterError as error:
                failures.append(f"{name_of(pod)} of pipeline {replacement.pipeline}: {error}")
        num_deleted = len(replacement.pods) - len(failures)
        if num_deleted:
            logger.info("%s: deleted %d pods of pipeline %s", owner.namespace, num_deleted, replacement.pipeline)
            self._announcer.announce_replaced(owner, replacement)
        return Deleted(num_deleted, tuple(failures))
