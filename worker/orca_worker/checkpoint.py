"""`Checkpoint`: the tensors of a Hugging Face directory, each read when it is asked for and only then.

safetensors, one file or sharded with an index. A rank asks for its own tensors alone, so a partition
never holds the whole model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from orca_worker.errors import ModelError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CHUNK_VALUES = 1 << 20
"""Values that are read at a time."""


class Checkpoint:
    """Weights of one directory, cast to `dtype` on `device` as they are read.

    `on_read` is told the bytes read so far. Raises ModelError if there are no weights or a file is damaged.
    """

    def __init__(
        self, model_path: Path, dtype: torch.dtype, device: torch.device, on_read: Callable[[int], None]
    ) -> None:
        self._path = model_path
        self._dtype = dtype
        self._device = device
        self._on_read = on_read
        self._bytes_read = 0
        self._files: dict[str, Any] = {}
        self._file_of: dict[str, str] = self._index()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def read(self, name: str, shape: tuple[int, ...], part: tuple[slice, ...] = (slice(None),)) -> torch.Tensor:
        """Returns `part` of the tensor `name`, which must be of exactly `shape` as a whole.

        Only that part is read. Raises ModelError if the tensor is missing or of another shape.
        """
        if name not in self._file_of:
            raise ModelError(f"{self._path}: tensor {name} is missing")
        stored = self._open(self._file_of[name]).get_slice(name)
        found = tuple(stored.get_shape())
        if found != shape:
            raise ModelError(f"{self._path}: tensor {name} has shape {list(found)}, {list(shape)} is expected")
        cuts = (*part, *[slice(None)] * (len(shape) - len(part)))
        tensor = self.empty(*(len(range(*cut.indices(size))) for cut, size in zip(cuts, shape, strict=True)))
        first, _, _ = cuts[0].indices(shape[0])
        # A part at a time: the stored values may be wider than what is kept, and are not held beside it.
        for rows in torch.split(tensor, max(1, CHUNK_VALUES // max(1, math.prod(shape[1:])))):
            chunk = stored[(slice(first, first + len(rows)), *cuts[1:])]
            rows.copy_(chunk)
            first += len(rows)
            self._bytes_read += chunk.nbytes
            self._on_read(self._bytes_read)
        return tensor

    def empty(self, *shape: int) -> torch.Tensor:
        """Returns room for values of the dtype and on the device that `read` gives."""
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    def _index(self) -> dict[str, str]:
        if (self._path / INDEX).is_file():
            try:
                weight_map = json.loads((self._path / INDEX).read_bytes())["weight_map"]
            except (ValueError, KeyError) as error:
                raise ModelError(f"{self._path / INDEX}: no weight_map in it") from error
            return dict(weight_map)
        if (self._path / SINGLE).is_file():
            return dict.fromkeys(self._open(SINGLE).keys(), SINGLE)
        hint = ""
        if any(self._path.glob("*.bin")) or any(self._path.glob("*.pt")):
            hint = "; pickled weights are not read: save the model with safe_serialization"
        raise ModelError(f"{self._path}: no weights: {SINGLE} or {INDEX} is expected{hint}")

    def _open(self, name: str) -> Any:
        if name not in self._files:
            try:
                (self._path / name).open("rb").close()  # safe_open calls a file that may not be read "not found"
                self._files[name] = safe_open(self._path / name, framework="pt")
            except OSError as error:
                raise ModelError(f"{self._path / name}: {error.strerror or error}") from error
            except SafetensorError as error:
                raise ModelError(f"{self._path / name}: {error}") from error
        return self._files[name]


class Scope:
    """The tensors of a checkpoint below a prefix, `scope["attn"]["c_proj"]`-style."""

    def __init__(self, checkpoint: Checkpoint, prefix: str = "") -> None:
        self._checkpoint = checkpoint
        self._prefix = prefix

    def __getitem__(self, name: str | int) -> Scope:
        return Scope(self._checkpoint, f"{self._prefix}{name}.")

    def __contains__(self, name: str) -> bool:
        return f"{self._prefix}{name}" in self._checkpoint

    def read(self, name: str, *shape: int, part: tuple[slice, ...] = (slice(None),)) -> torch.Tensor:
        """See Checkpoint.read."""
        return self._checkpoint.read(f"{self._prefix}{name}", shape, part)

    def empty(self, *shape: int) -> torch.Tensor:
        """See Checkpoint.empty."""
        return self._checkpoint.empty(*shape)
