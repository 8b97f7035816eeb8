"""`list_children`: the children of an OrcaDeployment, kind by kind.

A kind that the operator may not list, and without which pods serve (plan.OPTIONAL), holds nothing else up.
"""

from __future__ import annotations

from http import HTTPStatus

from orca_operator.cluster import Cluster, ClusterError, KindNotServedError
from orca_operator.observe import Object
from orca_operator.plan import OPTIONAL
from orca_operator.store import WATCHED, Key


def list_children(cluster: Cluster, key: Key) -> tuple[list[Object], list[str]]:
    """Return the children, and a sentence for each optional kind that may not be listed; raise ClusterError."""
    children: list[Object] = []
    refusals: list[str] = []
    for kind in WATCHED:
        try:
            children += cluster.children(kind, *key)
        except KindNotServedError:
            continue
        except ClusterError as error:
            if error.status != HTTPStatus.FORBIDDEN or kind not in OPTIONAL:
                raise
            refusals.append(f"each {kind} that the spec does not need stays: {error}")
    return children, refusals
