"""Files of an adapter that is loaded while the model runs: where they may be, their bounds and their digest.

A client chooses the path, so everything that is read lies below one folder after all links are followed, and an error
names no other path. Imports no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from orca_protos import engine_pb2 as pb
from orca_protos.model_files import FileError, open_file, quote, regular_file

from orca_worker.adapter_files import CONFIG, WEIGHTS, Adapter, linear_maps, read_adapter
from orca_worker.errors import ModelError
from orca_worker.model_config import read_model_config
from orca_worker.weight_headers import WeightHeaders

MAX_FILE_BYTES = 1 << 30
"""Largest file of such an adapter. One of rank 64 for all maps of 8 billion weights has 0.3 GiB in 16 bits."""
READ_BYTES = 1 << 20


def read_runtime_adapter(adapter: pb.RuntimeAdapter, request: pb.LoadRequest) -> Adapter:
    """Check an adapter for the model that `request` has loaded; raise ModelError without the path of DIR."""
    root = os.path.realpath(request.runtime_adapters)
    folder = _folder(root, adapter.path)
    model = Path(request.model_path)
    with shown_below(request):
        for name in (CONFIG, WEIGHTS):
            # First without opening anything: the error is the same whether something outside exists or not.
            resolved = os.path.realpath(folder / name)
            if not (_is_below(root, resolved) and _is_below(root, str(regular_file(folder, name)))):
                raise FileError(f"{folder / name}: a link out of the folder of --enable-runtime-adapters")
        return read_adapter(folder, linear_maps(read_model_config(model), WeightHeaders(model).file_of))


@contextlib.contextmanager
def shown_below(request: pb.LoadRequest) -> Iterator[None]:
    """Raise errors about the files of an adapter as ModelErrors that show their paths below DIR only."""
    try:
        yield
    except (FileError, ModelError, OSError) as error:
        root = os.path.join(os.path.realpath(request.runtime_adapters), "")
        raise ModelError(str(error).replace(root, "").replace(ascii(root)[1:-1], "")) from error


def checked_digest(adapter: pb.RuntimeAdapter, request: pb.LoadRequest) -> str:
    """Check an adapter and return the SHA-256 of its files in hexadecimal digits.

    Raises ModelError, also for files of more than MAX_FILE_BYTES, or with another digest than `adapter` has.
    """
    folder = read_runtime_adapter(adapter, request).folder
    with shown_below(request):
        return digest_of(folder, adapter.digest)


def digest_of(folder: Path, expected: str) -> str:
    """Return the SHA-256 of an adapter's files; raise ModelError if it is not `expected`, "" for any, or FileError."""
    digest = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        with open_file(folder, name, MAX_FILE_BYTES) as file:
            digest.update(f"{name} {os.fstat(file.fileno()).st_size} ".encode())
            while part := file.read(READ_BYTES):
                digest.update(part)
    if expected not in ("", digest.hexdigest()):
        raise ModelError(f"{folder}: the files have changed since they were first read")
    return digest.hexdigest()


def _folder(root: str, path: str) -> Path:
    """Return the resolved folder `path` below `root`; raise ModelError."""
    try:
        folder = os.path.realpath(os.path.join(root, path))
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        raise ModelError(f"{quote(path)} is not the path of a folder") from error
    if not _is_below(root, folder):
        # The same sentence whether something is there or not.
        raise ModelError(f"{quote(os.path.basename(path))} is not a folder below that of --enable-runtime-adapters")
    if not os.path.relpath(folder, root).isprintable():  # of a link; messages are UTF-8
        raise ModelError(f"{quote(path)}: the folder's name is not printable")
    return Path(folder)


def _is_below(root: str, path: str) -> bool:
    return path.startswith(os.path.join(root, ""))
