"""`JournalConfig`: the options of the journal. `model_identity`: a digest that identifies the model of its requests."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orca_master.errors import ConfigurationError

if TYPE_CHECKING:  # imports pydantic, which takes a tenth of a second
    from orca_contract.topology import Topology

IDENTIFYING = ("config.json", "tokenizer.json", "model.safetensors.index.json")


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """Options of the journal. `window`: seconds for which an ended request is remembered."""

    folder: Path
    window: float


def model_identity(topology: Topology) -> str:
    """Return a digest of the model's path, the types of its weights and of its K/V cache, its adapters, and the files
    IDENTIFYING.

    Not of its weights: a master may have none, and its workers may still be downloading them. Not of a draft model,
    which changes no token. Raises ConfigurationError.
    """
    folder = Path(topology.model.path)
    model = topology.model
    kind = model.dtype if model.quantization == "none" else f"{model.dtype} {model.quantization}"
    if model.kv_cache_dtype != "auto":
        kind += f" {model.kv_cache_dtype} K/V cache"
    kind += "".join(f" adapter {adapter.name!r} {adapter.path!r}" for adapter in model.adapters)
    digest = hashlib.sha256(f"{folder}\n{kind}\n".encode(errors="surrogateescape"))
    try:
        for name in IDENTIFYING:
            if (folder / name).is_file():
                digest.update((folder / name).read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{folder}: {error.strerror}") from error
    return digest.hexdigest()
