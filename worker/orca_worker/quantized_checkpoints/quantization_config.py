"""Reads `quantization_config` of config.json and picks the format of the weights. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from orca_contract.model_choices import Quantization
from orca_protos.model_files import checked, quote

from orca_worker.config_schema import ModelFile
from orca_worker.errors import ModelError
from orca_worker.quantized_checkpoints.awq import AwqFile
from orca_worker.quantized_checkpoints.compressed_tensors import CompressedTensorsFile, PackedFormat
from orca_worker.quantized_checkpoints.gptq import GptqFile, GptqFormat
from orca_worker.quantized_checkpoints.weight_format import WeightFormat, errors_of, refuse

FIELD = "quantization_config"
MARKERS = (GptqFormat.marker, PackedFormat.marker)
"""Tensors that only quantised maps have."""

Schema = TypeVar("Schema", bound=ModelFile)


class Holder(ModelFile, Generic[Schema]):
    """The part of config.json that has the object, so that errors name its fields in full."""

    quantization_config: Schema


SCHEMAS: Mapping[str, type[Holder[Any]]] = {
    "gptq": Holder[GptqFile],
    "awq": Holder[AwqFile],
    "compressed-tensors": Holder[CompressedTensorsFile],
}
"""`quant_method` → schema of its other fields."""


def read_weight_format(raw: Mapping[str, Any], path: Path) -> WeightFormat | None:
    """Return the format of the weights of a config.json, None if they are not quantised.

    Raises FileError for fields of another type, and ModelError for values that are not supported.
    """
    fields = raw.get(FIELD)
    if fields is None:
        return None
    if not isinstance(fields, dict):
        raise ModelError(f"{FIELD} {quote(fields)}: an object is expected")
    method = fields.get("quant_method")
    if not isinstance(method, str) or method not in SCHEMAS:
        raise refuse(f"{FIELD}.quant_method", method, f"{', '.join(SCHEMAS)} are")
    given = {name: value for name, value in fields.items() if value is not None}
    file: GptqFile | AwqFile | CompressedTensorsFile = checked(
        SCHEMAS[method], {FIELD: given}, path
    ).quantization_config
    try:
        return file.weight_format()
    except ModelError as error:
        raise ModelError(f"{FIELD}.{error}") from error


def check_use(weight_format: WeightFormat | None, quantization: Quantization, device: str) -> None:
    """Raise ModelError if a checkpoint of this format cannot be served with these options."""
    if weight_format is None:
        return
    with errors_of(FIELD):
        weight_format.served_as(quantization)
    if device == "cuda":
        raise ModelError(
            f"{FIELD}: the CUDA kernels lack products of quantised weights ({weight_format.name}): use a CPU, or the "
            "unquantised checkpoint"
        )
