"""topology.json and `PUT /topology`: the model and the workers that serve it (docs/contracts.md, section 1).

The operator writes the topology for `orca master`; `orca serve` creates the same structure itself. Workers are
configured with their listen address only; the master sends them everything else from the topology.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from orca_contract import rank_environment
from orca_contract.message import Message, Positive, Since
from orca_contract.model_choices import (
    MAX_ADAPTERS,
    MAX_NAME_LENGTH,
    Backend,
    Device,
    Dtype,
    KvCacheDtype,
    Quantization,
    adapters_refusal,
    backend_refusal,
    device_of,
    kv_cache_refusal,
    quantization_refusal,
    tensor_parallel_refusal,
)

MAX_PATH_LENGTH = 4096
"""PATH_MAX of Linux."""
NO_ZERO = r"^[^\x00]*$"


class AdapterSpec(Message):
    """An adapter (LoRA) as a PEFT directory that workers can read; requests choose it by its name."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]
    path: Annotated[str, Field(min_length=1, max_length=MAX_PATH_LENGTH, pattern=NO_ZERO)]


class ModelSpec(Message):
    """The model as a directory that master and workers can read."""

    path: Annotated[str, Field(min_length=1, max_length=MAX_PATH_LENGTH)]
    served_name: str
    dtype: Dtype = "auto"
    max_model_len: Positive | None = None
    quantization: Annotated[Quantization, Since(7)] = "none"
    kv_cache_dtype: Annotated[KvCacheDtype, Since(8)] = "auto"
    adapters: Annotated[list[AdapterSpec], Field(max_length=MAX_ADAPTERS), Since(10)] = Field(default_factory=list)
    draft_path: Annotated[str | None, Field(min_length=1, max_length=MAX_PATH_LENGTH, pattern=NO_ZERO), Since(11)] = (
        None
    )
    """Directory, on the workers, of a smaller model with the same tokens that drafts tokens; None: no draft model."""

    @field_validator("path")
    @classmethod
    def _is_a_path(cls, path: str) -> str:
        if "\0" in path:
            raise ValueError("a path has no zero byte")
        return path


class Communication(Message):
    """The data plane. `device` is that of the workers, None: the backend's own; `env` goes to the rank processes
    (rank_environment.py).
    """

    backend: Backend = "gloo"
    device: Annotated[Device | None, Since(10)] = None
    socket_interface: str = ""
    env: dict[str, str] = Field(default_factory=dict)

    @property
    def workers_device(self) -> Device:
        """The device of the workers."""
        return self.device or device_of(self.backend)

    @classmethod
    def of(cls, device: Device, backend: Backend, socket_interface: str = "") -> Communication:
        """Return the data plane; its `device` is None for the backend's own, so that older readers accept it."""
        own = device == device_of(backend)
        return cls(backend=backend, device=None if own else device, socket_interface=socket_interface)


class PipelineSpec(Message):
    """The controllers of one pipeline, in the order of their partitions."""

    id: str
    workers: Annotated[list[str], Field(min_length=1)]
    state: Literal["active", "draining"] = "active"


class Topology(Message):
    """The whole topology. A master rejects a topology for which `refusal` returns a reason."""

    model: ModelSpec
    pipeline_parallel_size: Positive = 1
    tensor_parallel_size: Positive = 1
    communication: Communication = Communication()
    pipelines: list[PipelineSpec]
    """Empty only in `PUT /topology` to a master of version 6 or newer: requests then wait for a later change."""
    closed: Annotated[str, Since(6)] = ""
    """Why new requests are refused with 503; "": they are accepted. Accepted requests are answered."""

    def refusal(self) -> str:
        """Return why a master must reject the topology, beginning with the field; "" if it is valid.

        Not a validator of the fields: reports of a master that started under other rules must stay readable.
        """
        if reason := rank_environment.refusal(self.communication.env):
            return f"communication.env: {reason}"
        device, backend = self.communication.workers_device, self.communication.backend
        for name, reason in (
            ("communication.backend", backend_refusal(device, backend)),
            ("tensorParallelSize", tensor_parallel_refusal(self.tensor_parallel_size, device, backend)),
            ("model.quantization", quantization_refusal(self.model.quantization, device)),
            ("model.kvCacheDtype", kv_cache_refusal(self.model.kv_cache_dtype, device)),
            ("model.adapters", adapters_refusal([self.model.served_name], [each.name for each in self.model.adapters])),
        ):
            if reason:
                return f"{name}: {reason}"
        for index, pipeline in enumerate(self.pipelines):
            if len(pipeline.workers) != self.pipeline_parallel_size:
                return (
                    f"pipelines.{index}.workers: pipeline {pipeline.id} names {len(pipeline.workers)} workers, "
                    f"pipelineParallelSize is {self.pipeline_parallel_size}"
                )
        return ""
