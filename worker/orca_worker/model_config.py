"""Reads and checks config.json of a model's folder, without torch; computes the digest of a load.

The controller checks it before it spawns ranks, so that a model that does not fit is refused at once.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from orca_protos import engine_pb2 as pb
from orca_protos.model_files import CONFIG_BYTES, FileError, checked, quote, read_object

from orca_worker.adapter_files import CONFIG, WEIGHTS
from orca_worker.config_schema import ArchitectureFile
from orca_worker.errors import ModelError
from orca_worker.load_request import has_draft_model
from orca_worker.model_identity import source_digest
from orca_worker.models import FAMILIES, without_head
from orca_worker.models.family import ModelConfig
from orca_worker.quantized_checkpoints.quantization_config import FIELD, read_weight_format


def read_model_config(model_path: Path) -> ModelConfig:
    """Read config.json; raise ModelError that names what is missing, wrong or unsupported."""
    path = model_path / "config.json"
    try:
        raw = read_object(model_path, path.name, CONFIG_BYTES)
        name = checked(ArchitectureFile, raw, path).architectures[0]
        base = without_head(name)
        schema = FAMILIES.get(base or name)
        if schema is None:
            raise ModelError(f"architecture {quote(name)[1:-1]} is not supported: {', '.join(FAMILIES)} are")
        off = {field: 0 for field in schema.off_if_null if field in raw and raw[field] is None}
        config = checked(schema, raw | off, path).config()
        weight_format = read_weight_format(raw, path)
        if weight_format is not None and config.transposed and weight_format.method != "gptq":
            raise ModelError(f"{FIELD}: {weight_format.method} has no weights of family {config.family}, gptq has")
        tied = config.tied_head or bool(base)
        return replace(config, weight_format=weight_format, embeds_only=bool(base), tied_head=tied)
    except FileError as error:
        raise ModelError(str(error)) from error
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def load_digest(request: pb.LoadRequest) -> str:
    """Return a digest of config.json, the source, the weight files (name, size, time), those of adapters and of a draft
    model that the worker loads, and the request.

    A second Load with the same digest is a no-op.
    """
    digest = hashlib.sha256()
    for path in (request.model_path, *([request.draft_model_path] if has_draft_model(request) else ())):
        digest.update((Path(path) / "config.json").read_bytes())
        digest.update(source_digest(Path(path)).encode())
        for file in sorted(Path(path).glob("*.safetensors*")):
            status = file.stat()
            digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}".encode())
    for adapter in request.adapter:
        for name in (CONFIG, WEIGHTS):
            status = (Path(adapter.path) / name).stat()
            digest.update(f"{name} {status.st_size} {status.st_mtime_ns}".encode())
    digest.update(request.SerializeToString(deterministic=True))
    return digest.hexdigest()[:16]
