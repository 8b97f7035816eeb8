"""`worker.placement`: affinity between the pods of one pipeline, which are pod r of each partition's StatefulSet.

The StatefulSets have the same template for all pipelines, so that no label selector can name a pipeline. The API server
completes it: `matchLabelKeys` adds the new pod's own value of POD_INDEX, which the StatefulSet controller sets to r.
POD_INDEX exists since Kubernetes 1.28 and matchLabelKeys since 1.31 (KEP-3633).
"""

from __future__ import annotations

from typing import Any

from orca_operator import names
from orca_operator.manifests.context import Context

POD_INDEX = "apps.kubernetes.io/pod-index"
KINDS = {"colocate": "podAffinity", "spread": "podAntiAffinity"}
WEIGHT = 100
"""The highest weight of a preference."""


def pipeline_affinity(context: Context) -> dict[str, Any]:
    """Return the affinity of worker pods: the user's own, and that of `placement`."""
    affinity, placement = context.spec.worker.affinity, context.spec.worker.placement
    if placement is None:
        return affinity
    revision = {**names.selector(context.name, names.WORKER), names.REVISION_LABEL: context.revision}
    term: dict[str, Any] = {
        "labelSelector": {"matchLabels": revision},
        "matchLabelKeys": [POD_INDEX],
        "topologyKey": placement.topology_key,
    }
    strength = "requiredDuringSchedulingIgnoredDuringExecution"
    if placement.when_unsatisfiable == "ScheduleAnyway":
        strength = "preferredDuringSchedulingIgnoredDuringExecution"
        term = {"weight": WEIGHT, "podAffinityTerm": term}
    own = affinity.get(KINDS[placement.policy], {})
    return {**affinity, KINDS[placement.policy]: {**own, strength: [*own.get(strength, []), term]}}
