"""Small files that are complete or absent after a crash."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)
TEMPORARY = ".tmp"
"""Suffix of a file that is being written."""


def write_record(path: Path, fields: dict[str, Any]) -> None:
    """Write a JSON object that replaces the file at once; return when it is on the disk. Raises OSError."""
    temporary = path.with_suffix(TEMPORARY)
    with temporary.open("w", encoding="ascii") as file:
        json.dump(fields, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Return when the names of a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a folder; remove files that a crash left unfinished, and skip damaged ones with a log."""
    for path in folder.glob(f"*{TEMPORARY}"):
        path.unlink()
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            fields = json.loads(path.read_bytes())
        except ValueError:
            fields = None
        if isinstance(fields, dict) and fields.get("id") == path.stem:
            records.append(fields)
        else:
            logger.error("--batch-directory: %s is damaged and ignored", path)
    return records
