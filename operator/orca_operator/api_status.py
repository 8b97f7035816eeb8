"""The status of an OrcaDeployment, as the operator writes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from orca_operator.api_types import Part

SecondsOrAutomatic = Annotated[
    int | str,
    WithJsonSchema({"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
]


class LastFailure(Part):
    """The latest failure of a pipeline."""

    time: str = Field(description="Time of the failure, RFC 3339.")
    reason: str = Field(description="One of the reasons of Ready.")
    pod: str = Field("", description="The pod that failed.")
    message: str = Field("", description="Error message of the component that detected the failure.")
    recovery_seconds: int | None = Field(None, description="Seconds until the pipeline served again.")


class PipelineStatus(Part):
    """One pipeline: pod `index` of every StatefulSet."""

    id: str = Field(description="<revision>-<index>")
    index: int = Field(description="Ordinal of the pipeline's pods.")
    phase: str = Field(description="Pending, Connecting, Loading, Forming, Serving or Recovering.")
    revision: str = Field(description="The pipeline's revision.")
    epoch: int = Field(0, description="How often the pipeline's communicators were created.")
    ready_workers: str = Field(description="Ready pods out of all, such as 3/4.")
    last_failure: LastFailure | None = Field(None, description="The latest failure of the pipeline.")


class SchedulerStatus(Part):
    """Settings of the scheduler in force, as the serving master reports them."""

    max_batch_size: int | None = Field(None, description="Maximum number of requests per iteration.")
    max_queue_depth: int | None = Field(None, description="Maximum number of waiting requests.")
    max_expected_wait_seconds: float | None = Field(None, description="Maximum expected wait of a new request.")
    token_budget: int | None = Field(None, description="Maximum number of input tokens per iteration.")
    admission: str | None = Field(None, description="reserve or paged.")
    policy: str | None = Field(None, description="fcfs or priority.")


class RecoveryPolicyStatus(Part):
    """Timeouts of failure recovery in force, as the serving master reports them."""

    stall_timeout_seconds: SecondsOrAutomatic | None = Field(
        None, description="Timeout of an iteration; automatic: derived from measured times."
    )
    recovery_timeout_seconds: float | None = Field(
        None, description="How long requests wait, without progress, for a lost pipeline."
    )


class Condition(Part):
    """A condition in the format of metav1.Condition."""

    type: str = Field(description="Type of the condition.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds.")
    reason: str = Field(description="Machine-readable reason, one word of a closed list.")
    message: str = Field("", description="Human-readable explanation.")
    last_transition_time: str = Field(description="Time of the last change of status, RFC 3339.")
    observed_generation: int = Field(0, description="metadata.generation that the condition describes.")


class Status(Part):
    """The observed state."""

    observed_generation: int = Field(0, description="metadata.generation that the status describes.")
    replicas: int = Field(0, description="Pipelines that have pods.")
    ready_replicas: int = Field(0, description="Pipelines whose pods are all ready.")
    available_replicas: int = Field(0, description="Pipelines that serve.")
    updated_replicas: int = Field(0, description="Pipelines of the update revision that have pods.")
    selector: str = Field("", description="Selector of the pods counted for scaling: those of partition 0.")
    topology: str = Field("", description="tp<T>xpp<P>")
    current_revision: str = Field("", description="The revision that serves, or served last.")
    update_revision: str = Field("", description="The revision of the spec.")
    url: str = Field("", description="URL of the API inside the cluster.")
    restarts: int = Field(0, description="Container restarts of the existing pods.")
    scheduler: SchedulerStatus | None = Field(None, description="Settings of the scheduler in force.")
    recovery_policy: RecoveryPolicyStatus | None = Field(None, description="Timeouts of failure recovery in force.")
    drain_timeout_seconds: float | None = Field(
        None, description="Timeout in force for running requests when the master ends."
    )
    pipelines: list[PipelineStatus] = Field([], description="Status of every pipeline.")
    conditions: list[Condition] = Field([], description="Conditions; Ready summarizes them.")
