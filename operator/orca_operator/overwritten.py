"""Fields of a spec in whose place the operator sets its own values, as sentences of FullyApplied. Pure."""

from __future__ import annotations

from kubernetes.utils.quantity import parse_quantity

from orca_operator import names
from orca_operator.api import Spec
from orca_operator.diagnose import GPU
from orca_operator.manifests.workers import devices


def overwritten(name: str, spec: Spec) -> list[str]:
    """Return a sentence for each label and device that objects of the deployment `name` have with another value."""
    common = names.labels(name)
    places = [
        ("master", spec.master.labels, names.master_labels(name, "")),
        ("worker", spec.worker.labels, names.worker_labels(name, "", 0)),
        ("service", spec.service.labels, common),
        ("monitoring", spec.monitoring.labels if spec.monitoring.enabled else {}, common),
    ]
    sentences = [
        f"spec.{place}.labels: the operator sets {key}: use another key"
        for place, labels, own in places
        for key in sorted(labels.keys() & own.keys())
        if labels[key] != own[key]
    ]
    given = spec.worker.resources
    for device, amount in devices(spec).items():
        quantities = {str(values[device]) for values in (given.requests, given.limits) if device in values}
        others = sorted(quantity for quantity in quantities if not _is_amount(quantity, amount))
        if others:
            source = "communication.rdmaResource: one device per pod"
            if device == GPU:
                source = "parallelism.tensorParallelSize"
            sentences.append(f"spec.worker.resources: {device} is {amount} and not {', '.join(others)}, by {source}")
    return sentences


def _is_amount(quantity: str, amount: str) -> bool:
    """Whether a quantity is this whole number, in any of Kubernetes' notations: 2000m and 2e0 are 2."""
    try:
        return bool(parse_quantity(quantity) == int(amount))  # type: ignore[no-untyped-call]
    except (ValueError, ArithmeticError):  # an exponent that no number has
        return False
