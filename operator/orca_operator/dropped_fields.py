"""Fields of a pod that an API server accepts and drops, because their feature gate is off. Pure.

The answer to a dry run shows it. An image volume disappears with its mounts, so that the pod would start without its
model; `matchLabelKeys` alone, so that all pipelines would share one topology domain. An API server whose version does
not know a field rejects it.
"""

from __future__ import annotations

from typing import Any

from orca_operator.validation import InvalidSpecError

GATED = {
    "image": "image volumes (oci:// models) need the feature gate ImageVolume, of Kubernetes 1.33 and newer",
    "matchLabelKeys": "worker.placement needs Kubernetes 1.31 or newer, topologySpreadConstraints 1.27",
    "resourceClaims": "dynamic resource allocation needs Kubernetes 1.34, or its feature gate",
    "schedulingGroup": "groups of pods need the feature gate GenericWorkload, of Kubernetes 1.36 and newer",
}
"""Field → what it needs."""


def check_kept(sent: dict[str, Any], answer: dict[str, Any]) -> None:
    """Raise InvalidSpecError if the API server's answer to an object lacks a field of GATED."""
    if (path := _lost(sent.get("spec"), answer.get("spec"), "spec")) is not None:
        need = GATED[path.rpartition(".")[2]]
        raise InvalidSpecError(f"{sent['kind']} {sent['metadata']['name']}: this cluster drops {path}: {need}")


def _lost(sent: Any, kept: Any, path: str) -> str | None:
    """Return the path of the first field of GATED that is in `sent` and not in `kept`."""
    if isinstance(sent, dict):
        kept = kept if isinstance(kept, dict) else {}
        pairs = [(f"{path}.{name}", name, value, kept.get(name)) for name, value in sent.items()]
    elif isinstance(sent, list):
        pairs = [(f"{path}[{i}]", "", entry, _counterpart(entry, i, kept)) for i, entry in enumerate(sent)]
    else:
        return None
    for place, name, value, counterpart in pairs:
        if value and not counterpart and name in GATED:
            return place
        if (lost := _lost(value, counterpart, place)) is not None:
            return lost
    return None


def _counterpart(entry: Any, index: int, kept: Any) -> Any:
    """Return the entry of a list with the same name; without names, an entry that has what `entry` has, or its place.

    A webhook may have inserted other entries before it.
    """
    entries = kept if isinstance(kept, list) else []
    if isinstance(entry, dict) and "name" in entry:
        return next((each for each in entries if isinstance(each, dict) and each.get("name") == entry["name"]), None)
    alike = [each for each in entries if _has_ungated(each, entry)]
    full = [each for each in alike if _lost(entry, each, "") is None]
    return (full or alike or entries[index : index + 1] or [None])[0]


def _has_ungated(kept: Any, sent: Any) -> bool:
    """Whether `kept` has all of `sent`, except for fields of GATED."""
    if isinstance(sent, dict):
        own = kept if isinstance(kept, dict) else {}
        return all(_has_ungated(own.get(name), value) for name, value in sent.items() if name not in GATED)
    return kept == sent or not sent
