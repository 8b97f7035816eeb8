"""`Checkpoint`: the tensors of a Hugging Face folder, read lazily.

The format is safetensors, in one file or sharded with an index. A rank reads only its own parts of tensors, so it
never holds the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from orca_worker.errors import ModelError
from orca_worker.weight_headers import SINGLE, WeightHeaders, weight_file

SUM_OF = {torch.float16: torch.float32}
"""Stored dtype → dtype of the sum of its values, if different: in float16 the sum of valid weights may overflow."""
CHUNK_VALUES = 1 << 20
"""Values per read."""


class Checkpoint:
    """Weights of one folder, cast to `dtype` on `device` while they are read.

    `on_read` gets the bytes of the tensors read so far, each counted as a whole and once. `single`: see WeightHeaders.
    Raises ModelError if there are no weights or a file is damaged.
    """

    def __init__(
        self,
        model_path: Path,
        dtype: torch.dtype,
        device: torch.device,
        on_read: Callable[[int], None],
        single: str = SINGLE,
    ) -> None:
        self._path = model_path
        self.dtype = dtype
        self._device = device
        self._on_read = on_read
        self._bytes_read = 0
        self._tensors_read: set[str] = set()
        self._files: dict[str, Any] = {}
        self._headers = WeightHeaders(model_path, single)

    def __contains__(self, name: str) -> bool:
        return name in self._headers.file_of

    @property
    def names(self) -> Collection[str]:
        """Names of all tensors."""
        return self._headers.file_of

    def read(self, name: str, shape: tuple[int, ...], part: tuple[slice, ...] = (slice(None),)) -> torch.Tensor:
        """Read `part` of the tensor `name`, whose whole shape must be `shape`.

        Raises ModelError if the tensor is missing, has another shape, or has values that are not finite.
        """
        header = self._headers.tensor(name)
        if header.shape != shape:
            raise ModelError(f"{self._path}: tensor {name} has shape {list(header.shape)}, {list(shape)} is expected")
        stored = self._open(self._headers.file_of[name]).get_slice(name)
        cuts = (*part, *[slice(None)] * (len(shape) - len(part)))
        tensor = self.empty(*(len(range(*cut.indices(size))) for cut, size in zip(cuts, shape, strict=True)))
        first, _, _ = cuts[0].indices(shape[0])
        uncounted = 0 if name in self._tensors_read else header.num_bytes
        num_rows = 0
        # Chunk by chunk, to bound peak memory: stored values may be wider than `dtype`.
        for rows in torch.split(tensor, max(1, CHUNK_VALUES // max(1, math.prod(shape[1:])))):
            chunk = stored[(slice(first, first + len(rows)), *cuts[1:])]
            # A NaN or infinity makes the sum non-finite, without memory for a mask. The sum alone may overflow, too.
            if not math.isfinite(chunk.sum(dtype=SUM_OF.get(chunk.dtype))) and not chunk.isfinite().all():
                raise ModelError(f"{self._path}: tensor {name} has values that are NaN or infinite")
            rows.copy_(chunk)
            first += len(rows)
            num_rows += len(rows)
            self._on_read(self._bytes_read + uncounted * num_rows // max(1, len(tensor)))
        self._bytes_read += uncounted
        self._tensors_read.add(name)
        return tensor

    def read_stored(
        self, name: str, shape: tuple[int, ...], part: tuple[slice, ...], dtypes: Collection[str]
    ) -> torch.Tensor:
        """Read `part` of the tensor `name` in its own dtype, one of `dtypes` as safetensors names them.

        Raises ModelError as `read` does, and for another dtype.
        """
        header = self._headers.tensor(name, dtypes)
        if header.shape != shape:
            raise ModelError(f"{self._path}: tensor {name} has shape {list(header.shape)}, {list(shape)} is expected")
        tensor: torch.Tensor = self._open(self._headers.file_of[name]).get_slice(name)[part]
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ModelError(f"{self._path}: tensor {name} has values that are NaN or infinite")
        self._bytes_read += 0 if name in self._tensors_read else header.num_bytes
        self._tensors_read.add(name)
        self._on_read(self._bytes_read)
        return tensor.to(self._device)

    def differ(self, first: str, second: str, shape: tuple[int, ...]) -> bool:
        """Return True if two tensors of `shape` [rows, columns] have different values in `dtype`; raise ModelError.

        False if the second one is not there, or has another shape or integers, as none that the model could use.
        """
        try:
            if self._headers.tensor(second).shape != shape:
                return False
        except ModelError:
            return False
        stored = [self._open(self._headers.file_of[name]).get_slice(name) for name in (first, second)]
        step = max(1, CHUNK_VALUES // max(1, shape[1]))
        return any(
            not torch.equal(*(tensor[row : row + step].to(self.dtype) for tensor in stored))
            for row in range(0, shape[0], step)
        )

    def place(self, prefix: str) -> str:
        """Return the folder and a name prefix, for error messages."""
        return f"{self._path}: map {prefix.removesuffix('.')}"

    def empty(self, *shape: int) -> torch.Tensor:
        """Return an uninitialised tensor of `shape`, with the dtype and device of `read`."""
        return torch.empty(shape, dtype=self.dtype, device=self._device)

    def _open(self, name: str) -> Any:
        if name not in self._files:
            path = weight_file(self._path, name)
            try:
                path.open("rb").close()  # safe_open reports a file without read permission as "not found"
                self._files[name] = safe_open(path, framework="pt")
            except OSError as error:
                raise ModelError(f"{self._path / name}: {error.strerror or error}") from error
            except SafetensorError as error:
                raise ModelError(f"{self._path / name}: {error}") from error
        return self._files[name]


class Scope:
    """The tensors of a checkpoint below a name prefix: `scope["attn"]["c_proj"].read("weight", …)`."""

    def __init__(self, checkpoint: Checkpoint, prefix: str = "") -> None:
        self._checkpoint = checkpoint
        self._prefix = prefix
        self.dtype = checkpoint.dtype
        """Dtype of the tensors that `read` returns."""

    def __getitem__(self, name: str | int) -> Scope:
        return Scope(self._checkpoint, f"{self._prefix}{name}.")

    def __contains__(self, name: str) -> bool:
        return f"{self._prefix}{name}" in self._checkpoint

    def read(self, name: str, *shape: int, part: tuple[slice, ...] = (slice(None),)) -> torch.Tensor:
        """See Checkpoint.read."""
        return self._checkpoint.read(f"{self._prefix}{name}", shape, part)

    def read_stored(
        self, name: str, shape: tuple[int, ...], part: tuple[slice, ...], dtypes: Collection[str]
    ) -> torch.Tensor:
        """See Checkpoint.read_stored."""
        return self._checkpoint.read_stored(f"{self._prefix}{name}", shape, part, dtypes)

    @property
    def name(self) -> str:
        """The prefix without the last dot: the name of a module."""
        return self._prefix.removesuffix(".")

    @property
    def place(self) -> str:
        """See Checkpoint.place."""
        return self._checkpoint.place(self._prefix)

    def empty(self, *shape: int) -> torch.Tensor:
        """See Checkpoint.empty."""
        return self._checkpoint.empty(*shape)
