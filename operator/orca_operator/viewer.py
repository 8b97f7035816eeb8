"""`Viewer`: the view of a pass, with what no watch tells: Events of children that do not come up, and lost nodes."""

from __future__ import annotations

import asyncio
from datetime import datetime

from orca_operator.child_events import ChildEvents, silent_children
from orca_operator.cluster import Cluster
from orca_operator.diagnose import View, look
from orca_operator.node_reader import NodeReader
from orca_operator.observe import Observed


class Viewer:
    """Makes the views of one OrcaDeployment."""

    def __init__(self, cluster: Cluster) -> None:
        self._events = ChildEvents(cluster)
        self._nodes = NodeReader(cluster)

    async def view(self, observed: Observed, namespace: str, now: datetime) -> View:
        """Return the view of a pass that begins at `now`. A failed read of Events or nodes does not end the pass."""
        silent = silent_children(observed, now)
        told = await asyncio.to_thread(self._events.causes, namespace, silent, now) if silent else {}
        nodes = await asyncio.to_thread(self._nodes.read, observed, now)
        return look(observed, now, told, nodes)
