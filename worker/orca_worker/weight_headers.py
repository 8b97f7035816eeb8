"""Headers of a model's weight files: the file, dtype and shape of each tensor. Imports no torch.

Source: the safetensors format (8 bytes: length of the header, little-endian; the header, JSON; the values). Headers are
fully checked: known dtypes, sizes that match shapes, values inside the file, no overlapping tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from orca_protos.model_files import (
    INDEX_BYTES,
    FileError,
    MissingFileError,
    checked,
    open_file,
    parse_object,
    quote,
    read_object,
    regular_file,
)
from pydantic import Field

from orca_worker.config_schema import ModelFile
from orca_worker.errors import ModelError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
LENGTH_BYTES = 8
MAX_DIMENSIONS = 8
FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Supported dtypes of weights → bytes of a value."""
OTHERS = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8} | {
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8,
}  # fmt: skip
"""Other dtypes of the format: a file may have tensors of them beside the weights."""


class IndexFile(ModelFile):
    """model.safetensors.index.json."""

    weight_map: Annotated[dict[str, str], Field(min_length=1)]


class HeaderEntry(ModelFile):
    """A tensor's entry in a header; `data_offsets` count from the end of the header."""

    dtype: str
    shape: Annotated[list[Annotated[int, Field(ge=0, lt=2**48)]], Field(max_length=MAX_DIMENSIONS)]
    data_offsets: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=2, max_length=2)]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Dtype and shape of a tensor; `dtype` is the format's name, such as "BF16"."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Return the size of the values."""
        return math.prod(self.shape) * (FLOATS | OTHERS)[self.dtype]


class WeightHeaders:
    """The weights of one folder; headers are read lazily. Raises ModelError.

    `single`: name of a file without an index.
    """

    def __init__(self, folder: Path, single: str = SINGLE) -> None:
        self._folder = folder
        self._single = single
        self._headers: dict[str, dict[str, StoredTensor]] = {}
        try:
            self.file_of = self._tensor_files()
        except FileError as error:
            raise ModelError(str(error)) from error

    def tensor(self, name: str, dtypes: Collection[str] = FLOATS) -> StoredTensor:
        """Return dtype and shape of the weight `name`; the dtype is one of `dtypes`."""
        if name not in self.file_of:
            raise ModelError(f"{self._folder}: tensor {name} is missing")
        file = self.file_of[name]
        if file not in self._headers:
            try:
                self._headers[file] = read_header(self._folder, file)
            except FileError as error:
                raise ModelError(str(error)) from error
        stored = self._headers[file].get(name)
        if stored is None:
            raise ModelError(f"{self._folder / file}: tensor {name} is missing, although {INDEX} names this file")
        if stored.dtype not in dtypes:
            raise ModelError(f"{self._folder / file}: tensor {name} has dtype {stored.dtype}, not {', '.join(dtypes)}")
        return stored

    def num_bytes(self) -> int:
        """Return the total size of the weight files that are present."""
        return sum(
            path.stat().st_size for name in set(self.file_of.values()) if (path := self._folder / name).is_file()
        )

    def _tensor_files(self) -> dict[str, str]:
        """Return tensor → file name, from the index if there is no single file, as transformers does."""
        single, index = self._single, self._folder / INDEX
        if single == SINGLE and not (self._folder / SINGLE).exists() and (index.is_symlink() or index.exists()):
            return read_index(self._folder)
        try:
            self._headers[single] = read_header(self._folder, single)
        except MissingFileError as error:
            hint = ""
            if any(self._folder.glob("*.bin")) or any(self._folder.glob("*.pt")):
                hint = "; pickled weights are not supported: save the model with safe_serialization"
            expected = f"{SINGLE} or {INDEX}" if single == SINGLE else single
            raise FileError(f"{self._folder}: no weights: {expected} is expected{hint}") from error
        return dict.fromkeys(self._headers[single], single)


def read_index(folder: Path) -> dict[str, str]:
    """Return tensor → file name from the index; raise FileError, also for names that are not plain file names."""
    path = folder / INDEX
    weight_map = checked(IndexFile, read_object(folder, INDEX, INDEX_BYTES), path).weight_map
    for name in set(weight_map.values()):
        if "/" in name or not name.isprintable() or not name.endswith(SUFFIX) or name == SUFFIX:
            raise FileError(f"{path}: weight_map names {quote(name)}: the name of a {SUFFIX} file is expected")
    return weight_map


def weight_file(folder: Path, name: str) -> Path:
    """Return the path of a weight file to open; raise ModelError."""
    try:
        return regular_file(folder, name)
    except FileError as error:
        raise ModelError(str(error)) from error


def read_header(folder: Path, name: str) -> dict[str, StoredTensor]:
    """Read and check the header of a safetensors file; raise FileError, MissingFileError."""
    path = folder / name
    try:
        with open_file(folder, name) as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if length > min(INDEX_BYTES, size - LENGTH_BYTES):
                raise FileError(
                    f"{path}: not a safetensors file, or truncated: a header of {length} bytes in a file of {size}; "
                    f"the limit of a header is {INDEX_BYTES}"
                )
            header = parse_object(file.read(length), path)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    header.pop("__metadata__", None)
    room = size - LENGTH_BYTES - length
    tensors, spans = {}, []
    for tensor, raw in header.items():
        if not isinstance(raw, dict):
            raise FileError(f"{path}: tensor {quote(tensor)}: an object is expected")
        entry = checked(HeaderEntry, raw, path / quote(tensor))
        start, end = entry.data_offsets
        value_bytes = FLOATS.get(entry.dtype) or OTHERS.get(entry.dtype)
        if value_bytes is None:
            raise FileError(f"{path}: tensor {quote(tensor)} has the unknown dtype {quote(entry.dtype)}")
        if end - start != math.prod(entry.shape) * value_bytes or end > room:
            raise FileError(
                f"{path}: tensor {quote(tensor)} of shape {entry.shape} and dtype {entry.dtype} does not fill bytes "
                f"{start} to {end} of {room}"
            )
        tensors[tensor] = StoredTensor(entry.dtype, tuple(entry.shape))
        spans.append((start, end, tensor))
    spans.sort()
    for (_, end, tensor), (start, _, next_tensor) in itertools.pairwise(spans):
        if start < end:
            raise FileError(f"{path}: tensors {quote(tensor)} and {quote(next_tensor)} overlap")
    return tensors
