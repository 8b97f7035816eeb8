"""Identities of the files that a worker loads, by which the master detects workers with different weights.

`orca fetch` leaves two records in a folder: SOURCE_FILE with the files of the revision at the source, VERIFIED with the
files that lie in the folder. A volume that pods share may have files of two revisions: a pod fetches the weights of its
own partition only. Files that nobody has fetched are compared by samples, because reading all weights takes minutes.
Imports no torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from orca_protos import engine_pb2 as pb
from orca_protos.file_digest import DIGITS, SAMPLE_BYTES, sampled_digest
from orca_protos.model_files import INDEX_BYTES, FileError, MissingFileError, read_object

from orca_worker.adapter_files import CONFIG as ADAPTER_CONFIG
from orca_worker.adapter_files import WEIGHTS as ADAPTER_WEIGHTS
from orca_worker.errors import FaultError, ModelError
from orca_worker.weight_headers import INDEX, SINGLE, read_header

SOURCE_FILE = ".orca-source.json"
"""Written by `orca fetch`: names and identities at the source of the files that workers load."""
VERIFIED = ".orca-verified.json"
"""Written by `orca fetch`: names and identities of the files that it has downloaded, and verified if possible.

A file that was being replaced when the download ended has null.
"""
MOST_FILES = 1000
"""Files of a folder that are compared."""
NUM_SAMPLES = 256
"""Of all weight files together."""
FEWEST_SAMPLES = 4
"""Of a weight file."""


def source_digest(model_path: Path) -> str:
    """Return the digest of SOURCE_FILE; "" without the file: nobody has fetched the folder."""
    try:
        return hashlib.sha256((model_path / SOURCE_FILE).read_bytes()).hexdigest()[:DIGITS]
    except FileNotFoundError:
        return ""


def compared_files(request: pb.LoadRequest, files: Collection[str], own_files: Collection[str]) -> dict[str, str]:
    """Return ModelFacts.file_digest for a model with the weights `files`, of which the worker needs `own_files`.

    Raises FaultError if the folder was fetched and has files of two revisions, ModelError, OSError.
    """
    folder = Path(request.model_path)
    if source_digest(folder):
        _check_fetched(folder, own_files, request.partition)
        digests = {}
    else:
        settings = ("config.json", *(() if SINGLE in files else (INDEX,)))
        left_out = {name for name in files if name not in own_files and not _is_whole(folder, name)}
        digests = file_digests(folder, settings, files, left_out)
    for adapter in request.adapter:
        of_adapter = file_digests(Path(adapter.path), (ADAPTER_CONFIG,), (ADAPTER_WEIGHTS,))
        digests |= {f"adapter {adapter.name}: {name}": digest for name, digest in of_adapter.items()}
    return digests


def _check_fetched(folder: Path, weights: Collection[str], partition: int) -> None:
    """Raise FaultError if a file that a worker reads is of another revision than the one that SOURCE_FILE has."""
    wanted, present = _record(folder / SOURCE_FILE), _record(folder / VERIFIED)
    for name in ("config.json", *(() if SINGLE in weights else (INDEX,)), *sorted(weights)):
        identity = wanted.get(name)
        # Weights that were fetched and are not listed: the last revision has others, which are not all there yet.
        is_other = name in weights and bool(wanted) and name not in wanted
        if name in present and (is_other or (isinstance(identity, str) and present[name] != identity)):
            message = (
                f"{folder}: {name} is not of the revision that was fetched last, into the same folder: fetch the model "
                "again, which new pods do, and name a commit in spec.model.revision"
            )
            kind = pb.FAULT_KIND_CAUSE
            raise FaultError(
                pb.Fault(message=message, kind=kind, partition=partition, outside=True, mixed_weights=True)
            )


def _is_whole(folder: Path, name: str) -> bool:
    """Whether a file that only other partitions need has weights here: it may be a pointer of Git LFS or a link."""
    try:
        return bool(read_header(folder, name))
    except FileError:
        return False


def file_digests(
    folder: Path, settings: Collection[str], weights: Collection[str], left_out: Collection[str] = ()
) -> dict[str, str]:
    """Return the digest of each of these files that is there: of whole settings, of sizes and samples of weights.

    `left_out`: weights that are not compared. Raises ModelError, OSError.
    """
    samples = max(FEWEST_SAMPLES, NUM_SAMPLES // max(1, len(weights)))
    wanted = dict.fromkeys(sorted(weights)[:MOST_FILES], samples) | dict.fromkeys(settings, INDEX_BYTES // SAMPLE_BYTES)
    digests = {}
    for name, num_samples in wanted.items():
        if name in left_out:
            continue
        try:
            digests[name] = sampled_digest(folder, name, num_samples)
        except MissingFileError:
            continue  # only other partitions need it
        except FileError as error:
            raise ModelError(str(error)) from error
    return digests


def _record(path: Path) -> dict[str, Any]:
    """Return the content of a record of `orca fetch`, empty without a readable one."""
    try:
        return read_object(path.parent, path.name, INDEX_BYTES)
    except FileError:
        return {}
