"""`spec.rolloutStrategy`: how a new revision replaces the old one, and its bounds counted in pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from orca_operator.api_types import Part

PERCENT = r"^(0|[1-9][0-9]{0,2})%$"
IntOrPercent = Annotated[
    int | str,
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 0,
            "maximum": 1000,
            "pattern": PERCENT,
        }
    ),
]
"""A number of pipelines, or a percentage of `replicas` such as 25% (Kubernetes' IntOrString)."""
NONE = (0, "0%")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many pipelines a rollout may have beyond the desired number, and how many may lack."""

    max_surge: int
    max_unavailable: int


class RolloutStrategy(Part):
    """How a new revision replaces the old one, counted in pipelines."""

    type: Literal["RollingUpdate", "Recreate"] | None = Field(
        None,
        description="RollingUpdate starts the new revision beside the old one, which is deleted as soon as the new one "
        "serves; Recreate deletes the old one first. Default: RollingUpdate.",
    )
    max_unavailable: IntOrPercent | None = Field(
        None,
        description="For RollingUpdate: maximum number of pipelines, or percentage of `replicas` (rounded down), that "
        "may lack during a rollout. Default: 0.",
    )
    max_surge: IntOrPercent | None = Field(
        None,
        description="For RollingUpdate: maximum number of additional pipelines, or percentage of `replicas` (rounded "
        "up), during a rollout. Default: 1.",
    )

    @property
    def recreates(self) -> bool:
        """Whether the old revision ends before the new one starts."""
        return self.type == "Recreate"

    @property
    def can_replace(self) -> bool:
        """Whether the bounds allow a pipeline to be replaced at all; Recreate has none."""
        return self.recreates or self.max_surge not in NONE or self.max_unavailable not in (None, *NONE)

    @property
    def filled_in_by_old_schema(self) -> bool:
        """Whether the values are the defaults that CRDs before RollingUpdate wrote into every OrcaDeployment."""
        return (self.type, self.max_unavailable, self.max_surge) == ("Recreate", 1, 0)

    def bounds(self, replicas: int) -> Bounds:
        """Return the bounds for a number of pipelines; as for Kubernetes' Deployments, never both 0."""
        surge = _count(1 if self.max_surge is None else self.max_surge, replicas, round_up=True)
        unavailable = _count(0 if self.max_unavailable is None else self.max_unavailable, replicas, round_up=False)
        return Bounds(surge, max(unavailable, 1) if surge == 0 else unavailable)


def _count(value: int | str, replicas: int, *, round_up: bool) -> int:
    if isinstance(value, int):
        return value
    hundredths = int(value.removesuffix("%")) * replicas
    return -(-hundredths // 100) if round_up else hundredths // 100
