"""Two OrcaDeployments of one namespace that want a Service of the same name: `d-control`, and the control Service of
`d`. The older one has it, whoever's pass comes first; no other names of children meet (tests/operator/test_rivals.py).
"""

from __future__ import annotations

from orca_operator import names
from orca_operator.cluster import Cluster
from orca_operator.observe import Object, name_of, owner_uid
from orca_operator.validation import InvalidSpecError


def check_rivals(cluster: Cluster, deployment: Object, children: tuple[Object, ...]) -> None:
    """Raise InvalidSpecError if an older OrcaDeployment needs a Service that this one needs, and does not have yet."""
    metadata = deployment["metadata"]
    own = {name_of(child) for child in children if child["kind"] == "Service" and owner_uid(child) == metadata["uid"]}
    for rival, service in names.rivals(metadata["name"]).items():
        if service in own:
            continue
        other = cluster.get(names.KIND, metadata["namespace"], rival)
        if other is not None and _age(other) < _age(deployment):
            raise InvalidSpecError(
                f"metadata.name: the OrcaDeployment {rival}, which is older, needs the Service {service}, too: "
                "choose another name"
            )


def _age(deployment: Object) -> tuple[str, str]:
    """Return a key that is smaller for an older OrcaDeployment: the time of its creation is in whole seconds."""
    return str(deployment["metadata"].get("creationTimestamp", "")), name_of(deployment)
