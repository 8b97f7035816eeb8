"""Wakes masters that hold requests and have no pipelines, from the last accepted rendering of their revision. Pure.

The spec is not needed: its present form may be rejected, wait for certificates, or belong to a newer revision. The
first pipeline is that of the revision's boot ConfigMap; its pods are those of the revision's StatefulSets.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from orca_contract.topology import Topology

from orca_operator import names
from orca_operator.actions import PutTopology, Scale
from orca_operator.observe import Observed, has_no_pipelines, holds_requests, is_ending, label


def wake_ups(observed: Observed, revisions: Collection[str]) -> tuple[list[Scale], list[PutTopology]]:
    """Return the changes that give one pipeline to each sleeping master of `revisions` that holds requests."""
    scales, puts = list[Scale](), list[PutTopology]()
    for revision in sorted(revisions):
        report = observed.reports.get(revision)
        if report is None or not has_no_pipelines(report) or not holds_requests(report):
            continue
        boots = [each for each in observed.of_kind("ConfigMap") if label(each, names.REVISION_LABEL) == revision]
        for boot in boots:
            started = Topology.model_validate(json.loads(boot["data"]["topology.json"]))
            assert report.topology is not None
            puts.append(PutTopology(revision, report.topology.model_copy(update={"pipelines": started.pipelines[:1]})))
        scales += [
            Scale(stateful_set, 1)
            for stateful_set in observed.of_kind("StatefulSet")
            if label(stateful_set, names.REVISION_LABEL) == revision
            and not is_ending(stateful_set)
            and not int(stateful_set["spec"]["replicas"])
        ]
    return scales, puts
