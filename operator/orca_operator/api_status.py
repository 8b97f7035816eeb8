"""The status of an OrcaDeployment, as the operator writes it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from orca_operator.api_types import Part


class LastFailure(Part):
    """The latest failure of a pipeline."""

    time: str = Field(description="When, RFC 3339.")
    reason: str = Field(description="One of the reasons of Ready.")
    pod: str = Field("", description="The pod to look at.")
    message: str = Field("", description="In the words of whoever noticed.")
    recovery_seconds: int | None = Field(None, description="Until it served again.")


class PipelineStatus(Part):
    """One pipeline: pod `index` of every StatefulSet."""

    id: str = Field(description="<revision>-<index>")
    index: int = Field(description="Ordinal of its pods.")
    phase: str = Field(description="Pending, Connecting, Loading, Forming, Serving or Recovering.")
    revision: str = Field(description="The revision it belongs to.")
    epoch: int = Field(0, description="How often its communicators were made.")
    ready_workers: str = Field(description="Ready pods of all, such as 3/4.")
    last_failure: LastFailure | None = Field(None, description="Its latest failure.")


class Condition(Part):
    """As metav1.Condition."""

    type: str = Field(description="What it is about.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(description="Why, one word of a closed list.")
    message: str = Field("", description="Why, for people.")
    last_transition_time: str = Field(description="When status changed last, RFC 3339.")
    observed_generation: int = Field(0, description="The spec that it speaks of.")


class Status(Part):
    """What is there."""

    observed_generation: int = Field(0, description="The spec that this speaks of.")
    replicas: int = Field(0, description="Pipelines that have pods.")
    ready_replicas: int = Field(0, description="Pipelines whose pods are all ready.")
    available_replicas: int = Field(0, description="Pipelines that serve.")
    updated_replicas: int = Field(0, description="Pipelines of the wanted revision.")
    selector: str = Field("", description="Pods that are counted for scaling: those of partition 0.")
    topology: str = Field("", description="tp<T>xpp<P>")
    current_revision: str = Field("", description="The revision that serves.")
    update_revision: str = Field("", description="The revision that is wanted.")
    url: str = Field("", description="Where clients in the cluster find the API.")
    restarts: int = Field(0, description="Container restarts of the pods that are there.")
    pipelines: list[PipelineStatus] = Field([], description="Every pipeline.")
    conditions: list[Condition] = Field([], description="Ready is the one to read.")
