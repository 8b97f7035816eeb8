"""Bodies of POST /v1/load_lora_adapter and /v1/unload_lora_adapter. Names of fields are vLLM's."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from orca_master.bodies.body import Body, Name


def _printable(text: str) -> str:
    if not (text and text.isprintable()):
        raise PydanticCustomError("not_printable", "printable characters are expected")
    return text


PrintableName = Annotated[Name, AfterValidator(_printable)]


class UnloadAdapterRequest(Body):
    """An adapter, by the name that requests use as their model."""

    lora_name: PrintableName


class LoadAdapterRequest(UnloadAdapterRequest):
    """A name for the adapter in the folder `lora_path`."""

    lora_path: PrintableName
