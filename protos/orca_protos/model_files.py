"""Reads untrusted files of a model's folder with bounds.

Rules: a name contains no folder; links must end at a regular file below the folder, or in the `blobs` folder that a
Hugging Face cache has beside its snapshots; the size is checked before reading; JSON must be an object without
duplicate names, whose fields a pydantic model checks. An error is one line of printable text that begins with the
file's path.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

if TYPE_CHECKING:  # takes a tenth of a second, which the ranks of `orca serve` would start later
    from pydantic import BaseModel

KIBIBYTE, MEBIBYTE = 1 << 10, 1 << 20
CONFIG_BYTES = MEBIBYTE
"""Limit of configuration files such as config.json, which usually have a few kibibytes."""
TOKENIZER_BYTES = 64 * MEBIBYTE
"""Limit of tokenizer.json, which has 33 MiB for a vocabulary of 256,000 tokens."""
INDEX_BYTES = 4 * MEBIBYTE
"""Limit of an index or header of weights, which has 150 KiB for 126 layers. Parsed, 4 MiB may take 130 MiB."""
QUOTED_CHARACTERS = 80

Schema = TypeVar("Schema", bound="BaseModel")


class FileError(Exception):
    """A rejected file of a model; the message names the file and the problem."""


class MissingFileError(FileError):
    """A file that does not exist."""


def quote(value: object) -> str:
    """Return the repr of a file's value for an error message, printable and truncated."""
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    text = ascii(value[: QUOTED_CHARACTERS + 1] if isinstance(value, str) else value)
    return text if len(text) <= QUOTED_CHARACTERS else f"{text[:QUOTED_CHARACTERS]}…"


def regular_file(folder: Path, name: str) -> Path:
    """Return the resolved path of the regular file `name` of `folder`; raise FileError, MissingFileError."""
    if name in ("", ".", "..") or "/" in name or not name.isprintable():
        raise FileError(f"{folder}: {quote(name)} is not the name of a file in this folder")
    path = folder / name
    try:
        real, home = path.resolve(strict=True), folder.resolve(strict=True)
        mode = real.stat().st_mode
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: {error.strerror}") from error
    except (OSError, RuntimeError, ValueError) as error:
        # RuntimeError: a cycle of links, before Python 3.13. ValueError: a zero byte in the folder's name.
        raise FileError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not any(map(real.is_relative_to, (home, *_blobs(home)))):
        raise FileError(f"{path}: a link out of the model's folder, to {str(real)!a}: copy the file here instead")
    if not stat.S_ISREG(mode):
        raise FileError(f"{path}: not a regular file")
    return real


def _blobs(home: Path) -> list[Path]:
    """Return the resolved `blobs` folder of the Hugging Face cache that holds the folder `home`, if one does.

    There snapshots/COMMIT/NAME and snapshots/COMMIT/SUBFOLDER/NAME are links to blobs/DIGEST.
    """
    snapshots = next((parent for parent in home.parents if parent.name == "snapshots"), None)
    try:
        return [] if snapshots is None else [(snapshots.parent / "blobs").resolve(strict=True)]
    except (OSError, RuntimeError):
        return []


def open_file(folder: Path, name: str, limit: int | None = None) -> BinaryIO:
    """Open a regular file of at most `limit` bytes; raise FileError, MissingFileError."""
    real = regular_file(folder, name)
    try:
        # O_NONBLOCK: the file could have been replaced by a FIFO since the check.
        descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise FileError(f"{folder / name}: {error.strerror}") from error
    file = os.fdopen(descriptor, "rb")
    status = os.fstat(descriptor)
    problem = ""
    if not stat.S_ISREG(status.st_mode):
        problem = "not a regular file"
    elif limit is not None and status.st_size > limit:
        problem = f"{status.st_size} bytes, at most {limit} are read"
    if problem:
        file.close()
        raise FileError(f"{folder / name}: {problem}")
    return file


def read_file(folder: Path, name: str, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; raise FileError, MissingFileError."""
    with open_file(folder, name, limit) as file:
        try:
            return file.read(limit)
        except OSError as error:
            raise FileError(f"{folder / name}: {error.strerror}") from error


def parse_object(content: bytes, path: Path) -> dict[str, Any]:
    """Return a JSON object; raise FileError if `content` is not an object, or an object has duplicate names."""
    try:
        value = json.loads(content, object_pairs_hook=_without_duplicates)
    except RecursionError as error:
        raise FileError(f"{path}: nested too deeply") from error
    except ValueError as error:
        raise FileError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FileError(f"{path}: a JSON object is expected, not {quote(value)}")
    return value


def read_object(folder: Path, name: str, limit: int) -> dict[str, Any]:
    """Read a file that holds one JSON object; raise FileError, MissingFileError."""
    return parse_object(read_file(folder, name, limit), folder / name)


def checked(schema: type[Schema], raw: dict[str, Any], path: Path) -> Schema:
    """Validate `raw` as a `schema`, where null means absent; raise FileError that names the first invalid field."""
    from pydantic import ValidationError

    try:
        return schema.model_validate({name: value for name, value in raw.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(quote(part)[1:-1] if isinstance(part, str) else str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise FileError(f"{path}: {field} is missing") from error
        message = first["msg"].removeprefix("Value error, ")
        if not field:
            raise FileError(f"{path}: {message}") from error
        raise FileError(f"{path}: {field} {quote(first['input'])}: {message}") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names: set[str] = set()
        duplicate = next(
            name
            for name, _ in pairs
            if name in names or names.add(name)  # type: ignore[func-returns-value]
        )
        raise ValueError(f"duplicate name {quote(duplicate)}")
    return value
