"""`read_sampling_file`: the sampling parameters that a model's generation_config.json recommends.

They stand for those that a request does not set, as in vLLM. As there, `do_sample` is not read: a request is greedy if
its temperature is 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from orca_protos.model_files import CONFIG_BYTES, FileError, MissingFileError, checked, read_object
from pydantic import BaseModel, ConfigDict, Field

from orca_master.errors import ConfigurationError

FILE = "generation_config.json"


class SamplingFile(BaseModel):
    """The fields of generation_config.json that are read, in the ranges of a request's (openai_requests.py)."""

    model_config = ConfigDict(strict=True, extra="ignore")

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=10**9)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=10**9)] | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        """Values of fields that a request does not set, by their names."""
        return self.model_dump(exclude_none=True, exclude={"max_new_tokens"})


def read_sampling_file(model_path: Path) -> SamplingFile:
    """Return the content of a model's file, without any field if the file is absent; raise ConfigurationError."""
    try:
        return checked(SamplingFile, read_object(model_path, FILE, CONFIG_BYTES), model_path / FILE)
    except MissingFileError:
        return SamplingFile()
    except FileError as error:
        raise ConfigurationError(str(error)) from error
