"""Orphans: children without an owner, which `kubectl delete --cascade=orphan` leaves. They get the new owner.

Adopted is only what the operator has made, by label and name: what the spec does not need is deleted later. Others have
the label, too: KEDA copies it to its own HPA, and `kubectl expose` copies it to a Service.
"""

from __future__ import annotations

from collections.abc import Container
from http import HTTPStatus
from typing import Any

from orca_operator import names
from orca_operator.cluster import Cluster, ClusterError, KindNotServedError
from orca_operator.manifests.context import Owner
from orca_operator.observe import Object, is_ending, label, name_of, owner_uid
from orca_operator.observe import owner as owner_of
from orca_operator.store import Place
from orca_operator.validation import InvalidSpecError


def adopt_orphans(
    cluster: Cluster, children: tuple[Object, ...], owner: Owner, known: Container[Place]
) -> tuple[tuple[Object, ...], list[str]]:
    """Return the children, orphans with their new owner, and a sentence for each orphan that the API server keeps.

    Objects of others with the deployment's label are left out: no rule may count, change or delete them.
    `known`: children that have had this owner: another client has taken it, and `Executor` restores it.
    """
    adopted, failures = [], []
    for child in children:
        place = kind, name = child["kind"], name_of(child)
        orphan = is_orphan(child, owner.name)
        if orphan or _is_controlled(child):
            adopted.append(child)
        if not orphan or place in known:
            continue
        try:
            adopted[-1] = {**adopt(cluster, child, owner), "kind": kind}
        except KindNotServedError:
            continue
        except ClusterError as error:
            if error.status not in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):  # the watch is late
                failures.append(f"{kind} {name} is not adopted: {error}")
    return tuple(adopted), failures


def is_orphan(child: Object, deployment: str) -> bool:
    """Whether a child of the operator's making has no controlling owner."""
    if owner_uid(child) or label(child, names.MANAGED_BY_LABEL) != names.FIELD_MANAGER:
        return False
    revision, roles = label(child, names.REVISION_LABEL), (names.MASTER, names.WORKER)
    given: dict[str, tuple[str, ...]] = {
        "Deployment": (names.master(deployment, revision),),
        "StatefulSet": (f"{names.revision(deployment, revision)}-p{label(child, names.PARTITION_LABEL)}",),
        "ConfigMap": (names.boot(deployment, revision),),
        "ControllerRevision": (names.revision(deployment, revision),),
        "Service": (deployment, names.control(deployment)),
        "NetworkPolicy": tuple(f"{deployment}-{role}" for role in roles),
        "Certificate": tuple(names.issued(deployment, role) for role in (*roles, names.OPERATOR)),
        "Pod": (),
    }
    return name_of(child) in given.get(child["kind"], (deployment,))


def _is_controlled(child: Object) -> bool:
    """Whether a child has an OrcaDeployment as its controlling owner; a Pod has a workload of one."""
    kind = owner_of(child).get("kind")
    return kind == names.KIND or (child["kind"] == "Pod" and kind is not None)


def adopt(cluster: Cluster, live: Object, owner: Owner) -> dict[str, Any]:
    """Make the OrcaDeployment the controlling owner of an object without one; return the object.

    Raises ClusterError, also while the OrcaDeployment is deleted: a deletion with orphans takes the owner from the
    children first, and with it again they would be deleted.
    """
    metadata, deployment = live["metadata"], cluster.get(names.KIND, owner.namespace, owner.name)
    if deployment is None or deployment["metadata"]["uid"] != owner.uid or is_ending(deployment):
        raise ClusterError(HTTPStatus.CONFLICT, f"{names.KIND} {owner.name} is deleted: nothing is adopted")
    owners = [*(metadata.get("ownerReferences") or []), owner.reference]
    fields = {"metadata": {"ownerReferences": owners, "resourceVersion": metadata["resourceVersion"]}}
    return cluster.merge(live["kind"], owner.namespace, metadata["name"], fields)


def is_own(live: Object, owner: Owner) -> bool:
    """Return False for an object of an earlier OrcaDeployment of the same name, which may be deleted.

    An object without an owner is adopted if it has the labels of the operator's making. Raises InvalidSpecError for any
    other object, which may be a user's or the operator's own.
    """
    if owner_uid(live) == owner.uid:
        return True
    holder = owner_of(live)
    has_label = label(live, names.DEPLOYMENT_LABEL) == owner.name
    if not holder and has_label and label(live, names.MANAGED_BY_LABEL) == names.FIELD_MANAGER:
        return True
    if holder.get("kind") == names.KIND and has_label:
        return False
    raise InvalidSpecError(f"metadata.name: a {live['kind']} named {name_of(live)} exists and is {_whose(live)}")


def _whose(live: Object) -> str:
    """Return whose an object is that the operator leaves alone, and what to do about that."""
    metadata, holder = live["metadata"], owner_of(live)
    release = (metadata.get("annotations") or {}).get("meta.helm.sh/release-name")
    if "name" in holder:
        return f"the {holder['kind']} {holder['name']}'s: choose another name"
    if label(live, names.NAME_LABEL) == names.OPERATOR_APP:
        return "the operator's own: choose another name than its Helm release's"
    if release:
        return f"the Helm release {release}'s: choose another name"
    return f"not ORCA's: choose another name, or remove the {live['kind']}"
