"""`JournalConfig`: the options of the journal. `model_identity`: which model its requests are for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from orca_contract.topology import Topology


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """Options of the journal. `window`: seconds for which an ended request is remembered."""

    folder: Path
    window: float


def model_identity(topology: Topology) -> str:
    """Return a digest of the names and sizes of the model's files, of its config.json and of the type of its weights.

    Weights of the same sizes have the same identity.
    """
    folder = Path(topology.model.path)
    digest = hashlib.sha256(topology.model.dtype.encode())
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode(errors="surrogateescape"))
    digest.update((folder / "config.json").read_bytes())
    return digest.hexdigest()
