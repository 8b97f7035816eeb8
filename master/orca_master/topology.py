"""topology.json: which model is served by which workers (docs/contracts.md, section 1).

The operator writes it for `orca master`; `orca serve` writes the same structure for itself. Workers
know nothing but their listen address; all else reaches them from here through the master.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from orca_protos import rank_environment
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from orca_master.errors import ConfigurationError

Positive = Annotated[int, Field(ge=1)]
MAX_PATH_LENGTH = 4096
"""PATH_MAX of Linux."""


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class ModelSpec(_Wire):
    """The model as a directory that master and workers can read."""

    path: Annotated[str, Field(min_length=1, max_length=MAX_PATH_LENGTH)]
    served_name: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_model_len: Positive | None = None

    @field_validator("path")
    @classmethod
    def _is_a_path(cls, path: str) -> str:
        if "\0" in path:
            raise ValueError("a path has no zero byte")
        return path


class Communication(_Wire):
    """Data plane: gloo is the CPU path, nccl the GPU path. `env` goes to the rank processes (rank_environment.py)."""

    backend: Literal["gloo", "nccl"] = "gloo"
    socket_interface: str = ""
    env: dict[str, str] = {}

    @field_validator("env")
    @classmethod
    def _only_tunes(cls, env: dict[str, str]) -> dict[str, str]:
        if refusal := rank_environment.refusal(env):
            raise ValueError(refusal)
        return env


class PipelineSpec(_Wire):
    """The controllers of one pipeline, in the order of their partitions."""

    id: str
    workers: Annotated[list[str], Field(min_length=1)]
    state: Literal["active", "draining"] = "active"


class Topology(_Wire):
    """The whole file."""

    model: ModelSpec
    pipeline_parallel_size: Positive = 1
    tensor_parallel_size: Positive = 1
    communication: Communication = Communication()
    pipelines: Annotated[list[PipelineSpec], Field(min_length=1)]

    @model_validator(mode="after")
    def _workers_match(self) -> Topology:
        for pipeline in self.pipelines:
            if len(pipeline.workers) != self.pipeline_parallel_size:
                raise ValueError(
                    f"pipeline {pipeline.id} names {len(pipeline.workers)} workers, "
                    f"pipelineParallelSize is {self.pipeline_parallel_size}"
                )
        return self


def read_topology(path: Path) -> Topology:
    """Reads topology.json; raises ConfigurationError with the first field that is wrong."""
    try:
        return Topology.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"--topology {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise ConfigurationError(f"--topology {path}: {where}: {first['msg']}") from error
