"""`sampling_defaults`: the sampling parameters that a model's generation_config.json recommends, and `max_new_tokens`.

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


def sampling_defaults(model_path: Path) -> dict[str, Any]:
    """Return the values by the names of a request's fields; raise ConfigurationError for an invalid file."""
    return _read(model_path).model_dump(exclude_none=True, exclude={"max_new_tokens"})


def max_new_tokens(model_path: Path) -> int | None:
    """Return the length of answers that the model recommends, if any; raise ConfigurationError for an invalid file."""
    return _read(model_path).max_new_tokens


def _read(model_path: Path) -> SamplingFile:
    try:
        return checked(SamplingFile, read_object(model_path, FILE, CONFIG_BYTES), model_path / FILE)
    except MissingFileError:
        return SamplingFile()
    except FileError as error:
        raise ConfigurationError(str(error)) from error
