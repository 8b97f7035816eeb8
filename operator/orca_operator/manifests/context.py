"""`Owner` and `Context`: the arguments of every manifest builder."""

from __future__ import annotations

from dataclasses import dataclass

from orca_operator.api import Spec
from orca_operator.names import API_VERSION, KIND


@dataclass(frozen=True, slots=True)
class Images:
    """Default images, from the operator's configuration."""

    master: str
    worker: str


@dataclass(frozen=True, slots=True)
class Owner:
    """Identity of one OrcaDeployment."""

    name: str
    namespace: str
    uid: str

    @property
    def reference(self) -> dict[str, object]:
        """The entry in a child's ownerReferences: the child is deleted with its owner."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def metadata(self, name: str, labels: dict[str, str]) -> dict[str, object]:
        """Return the metadata of a child."""
        return {"name": name, "namespace": self.namespace, "labels": labels, "ownerReferences": [self.reference]}


@dataclass(frozen=True, slots=True)
class Context(Owner):
    """One OrcaDeployment at one revision."""

    spec: Spec
    revision: str
    images: Images
