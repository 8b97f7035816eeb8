"""Small files that are complete or absent after a crash."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from orca_master.batches.records import BatchRecord, FileRecord

logger = logging.getLogger(__name__)
TEMPORARY_SUFFIX = ".tmp"
"""Suffix of a file that is being written."""
Record = TypeVar("Record", FileRecord, BatchRecord)


def write_record(path: Path, fields: dict[str, Any]) -> None:
    """Write a JSON object that replaces the file at once; return when it is on the disk.

    Raises OSError; then the unfinished file is removed, which would take the room of a full disk.
    """
    temporary = path.with_suffix(TEMPORARY_SUFFIX)
    try:
        with temporary.open("w", encoding="ascii") as file:
            json.dump(fields, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Return when the names of a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_records(folder: Path, kind: TypeAdapter[Record]) -> dict[str, Record]:
    """Return the records of a folder by their ids, which are their names.

    Removes files that a crash left unfinished. Damaged records and those of other versions are skipped with a log.
    """
    for path in folder.glob(f"*{TEMPORARY_SUFFIX}"):
        path.unlink()
    records = {}
    for path in sorted(folder.glob("*.json")):
        try:
            record = kind.validate_json(path.read_bytes(), strict=True)
        except ValidationError:
            record = None
        if record is None or record.id != path.stem:
            logger.error("--batch-directory: %s is damaged or of another version, and ignored", path)
        else:
            records[record.id] = record
    return records
