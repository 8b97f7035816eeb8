"""Revisions: the hash of a spec's fields that affect pods, and the stored rendering. Pure.

A revision is a whole engine (docs/contracts.md, section 8). The rendering, which is the specs of the workloads and the
fixed parts of the master's start-up files, is stored in a ControllerRevision and read from there afterwards, so that an
operator of another version, which would render differently, restarts no pod (kuberay#2315). The start-up files are an
annotation: the data is immutable, and operators of versions before the annotation apply their own data again.
The hash omits defaults, so that new fields of the API change no hash. A field that becomes live leaves the hash; a
running revision whose hash contains it is kept (`spec_revision`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection
from typing import Any

from pydantic import ValidationError

from orca_operator import names
from orca_operator.api import Scheduler, Spec
from orca_operator.effects import Effect, all_but
from orca_operator.manifests.boot import Kept, kept_files
from orca_operator.manifests.context import Context
from orca_operator.manifests.master import master_deployment
from orca_operator.manifests.workers import worker_stateful_sets
from orca_operator.observe import Object, Observed, certificate_secret, is_ending, label, name_of

HASH_LENGTH = 6
KEPT_REVISIONS = 5


def revision_hash(spec: Spec) -> str:
    """Return the revision of a spec: the same for specs that need the same pods."""
    return _hash(_affecting(spec))


def spec_revision(spec: Spec, existing: Collection[str]) -> str:
    """Return the revision of a spec among `existing` revisions, or that of its hash.

    Operators before version 4 of the contract hashed `scheduler.admission`, so that the pods of a spec with `paged`
    have another revision. This is kept while it has workloads.
    """
    revision, fields = revision_hash(spec), _affecting(spec)
    if spec.scheduler.admission == Scheduler().admission or revision in existing:
        return revision
    former = _hash(fields | {"scheduler": fields.get("scheduler", {}) | {"admission": spec.scheduler.admission}})
    return former if former in existing else revision


def _affecting(spec: Spec) -> dict[str, Any]:
    """Return the fields that affect pods, without defaults."""
    affecting = spec.model_dump(by_alias=True, exclude_defaults=True, exclude=all_but(Spec, Effect.RESTARTS))
    return {name: value for name, value in affecting.items() if value != {}}  # {}: only live fields are set


def _hash(fields: dict[str, Any]) -> str:
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:HASH_LENGTH]


def rendering(context: Context, observed: Observed) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the master's Deployment and the StatefulSets of a revision, with stored specs while it has workloads.

    A return to an older revision without workloads renders anew, with the default images of today.
    """
    deployment, stateful_sets = master_deployment(context), worker_stateful_sets(context)
    stored = observed.find("ControllerRevision", names.revision(context.name, context.revision))
    if stored is not None and context.revision in observed.revisions() and (data := stored.get("data")):
        deployment["spec"] = data["deployment"]
        for stateful_set, spec in zip(stateful_sets, data["statefulSets"], strict=True):
            stateful_set["spec"] = spec
    return deployment, stateful_sets


def kept_boot(context: Context, observed: Observed) -> Kept:
    """Return the parts of the start-up files that a revision keeps: the stored ones while it has workloads."""
    return stored_boot(context.name, context.revision, observed) or kept_files(context)


def stored_boot(name: str, revision: str, observed: Observed) -> Kept | None:
    """Return the stored parts of a revision's start-up files, None without workloads or stored parts."""
    stored = observed.find("ControllerRevision", names.revision(name, revision))
    if stored is not None and revision in observed.revisions():
        with contextlib.suppress(ValidationError):  # stored by an older operator, or changed by another client
            annotations = stored["metadata"].get("annotations") or {}
            return Kept.model_validate_json(annotations.get(names.BOOT_ANNOTATION, ""))
    return None


def certificate_source(context: Context, observed: Observed) -> str:
    """Return the Secret with the certificate of the revision's master, "" if its pods use plaintext."""
    deployment, _ = rendering(context, observed)
    return certificate_secret(deployment["spec"]["template"]["spec"])


def controller_revision(context: Context, observed: Observed) -> dict[str, Any]:
    """Return the object that stores a revision's rendering, numbered after the existing ones."""
    existing = observed.find("ControllerRevision", names.revision(context.name, context.revision))
    if stale_rendering(context, observed):
        existing = None
    metadata = context.metadata(
        names.revision(context.name, context.revision),
        names.labels(context.name) | {names.REVISION_LABEL: context.revision},
    )
    highest = max((int(stored.get("revision", 0)) for stored in observed.stored_revisions()), default=0)
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": metadata | {"annotations": {names.BOOT_ANNOTATION: kept_boot(context, observed).model_dump_json()}},
        "revision": existing["revision"] if existing else highest + 1,
        "data": _data(context, observed),
    }


def stale_rendering(context: Context, observed: Observed) -> list[Object]:
    """Return the ControllerRevision of a revision without workloads if it differs from today's: it is immutable."""
    stored = observed.find("ControllerRevision", names.revision(context.name, context.revision))
    if stored is None or is_ending(stored) or stored.get("data") == _data(context, observed):
        return []
    return [stored]


def _data(context: Context, observed: Observed) -> dict[str, Any]:
    deployment, stateful_sets = rendering(context, observed)
    return {"deployment": deployment["spec"], "statefulSets": [each["spec"] for each in stateful_sets]}


def surplus(observed: Observed, needed: Collection[str]) -> list[Object]:
    """Return the oldest ControllerRevisions beyond KEPT_REVISIONS, never those of `needed` revisions."""
    others = [stored for stored in observed.stored_revisions() if label(stored, names.REVISION_LABEL) not in needed]
    others.sort(key=lambda stored: (int(stored.get("revision", 0)), name_of(stored)))
    return others[: max(0, len(others) - (KEPT_REVISIONS - len(needed)))]
