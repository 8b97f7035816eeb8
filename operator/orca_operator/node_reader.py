"""`NodeReader`: reads the nodes of pods that are not ready, which needs the right to `get` nodes.

A node whose kubelet reports is read again after READ_SECONDS, a lost one in every pass: a pod is deleted by force only
in a pass that has read its node.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus

from orca_operator.cluster import Cluster, ClusterError
from orca_operator.lost_nodes import OUT_OF_SERVICE, LostNode, Nodes, has_taint, lost_since, node_of, suspect_nodes
from orca_operator.observe import Observed

logger = logging.getLogger(__name__)

READ_SECONDS = 10
"""Interval between two reads of a node that is not lost."""
PAUSE_SECONDS = 60
"""Time without reads after a refused one."""
MOST_READS = 8
"""Reads of one pass: each is a call to the API server. Further nodes are read in the next passes."""
NEVER = datetime.min.replace(tzinfo=UTC)
REFUSED = (
    "the operator may not read nodes, so recoveryPolicy.nodeFailureGraceSeconds has no effect "
    "(helm: readNodes=true; by hand: kubectl delete pod NAME --force)"
)


@dataclass(frozen=True, slots=True)
class _Reading:
    """`since`: when the node was marked as lost, None if it is not lost or does not exist. `is_off`: see LostNode."""

    since: datetime | None
    read_at: datetime
    is_off: bool


class NodeReader:
    """Reads nodes for one OrcaDeployment."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._readings: dict[str, _Reading] = {}
        self._refusal = ""
        self._paused_until = NEVER

    def read(self, observed: Observed, now: datetime) -> Nodes:
        """Return the lost nodes of the pods. Blocks. After a failed read the earlier reading stays."""
        suspects = suspect_nodes(observed) or self._probe(observed)
        self._readings = {name: reading for name, reading in self._readings.items() if name in suspects}
        due = sorted((name for name in suspects if self._is_due(name, now)), key=self._read_at)
        for name in due[:MOST_READS] if self._paused_until <= now else []:
            try:
                node = self._cluster.get("Node", "", name) or {}
            except ClusterError as error:
                logger.warning("cannot read node %s: %s", name, error)
                if error.status == HTTPStatus.FORBIDDEN:
                    self._refusal, self._paused_until = REFUSED, now + timedelta(seconds=PAUSE_SECONDS)
                    self._readings.clear()
                break
            self._refusal = ""
            # The garbage collector of Kubernetes deletes the pods of a node that does not exist.
            self._readings[name] = _Reading(lost_since(node), now, has_taint(node, OUT_OF_SERVICE))
        lost = {
            name: LostNode(reading.since, reading.read_at, reading.is_off)
            for name, reading in self._readings.items()
            if reading.since is not None
        }
        return Nodes(lost, self._refusal)

    def _probe(self, observed: Observed) -> set[str]:
        """Return one node to read after a refusal although all pods are ready: the right may have been given since."""
        nodes = {node_of(pod) for pod in observed.pods()} - {""}
        return set(sorted(nodes)[:1]) if self._refusal else set()

    def _is_due(self, name: str, now: datetime) -> bool:
        reading = self._readings.get(name)
        if reading is None or reading.since is not None:
            return True
        return now - reading.read_at >= timedelta(seconds=READ_SECONDS)

    def _read_at(self, name: str) -> datetime:
        reading = self._readings.get(name)
        return NEVER if reading is None else reading.read_at
