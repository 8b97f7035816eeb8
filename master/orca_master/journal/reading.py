"""`read_folder`: the requests that earlier masters have left in the files of a journal."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from orca_protos import engine_pb2 as pb

from orca_master.errors import ConfigurationError
from orca_master.journal import records
from orca_master.journal.records import JournalledRequest, RecordError
from orca_master.journal.trace_parents import take_parent

logger = logging.getLogger(__name__)

SEGMENT_NAME = re.compile(r"\d{8}\.journal", re.ASCII)


def segment_path(folder: Path, segment: int) -> Path:
    """Return the path of the file with the number `segment`."""
    return folder / f"{segment:08d}.journal"


@dataclass(slots=True)
class Contents:
    """What the files of a folder have."""

    requests: dict[int, JournalledRequest] = field(default_factory=dict)
    """By number."""
    first_segments: dict[int, int] = field(default_factory=dict)
    """Number of the file in which each request begins."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Bytes of each file, by its number in ascending order."""
    weights: pb.ModelFacts = field(default_factory=pb.ModelFacts)
    """Of the last Weights of the newest file; empty without one, as in files of earlier versions."""


def read_folder(folder: Path, header: bytes, is_cancelled: Callable[[], bool]) -> Contents:
    """Read all files that begin with the line `header`; raise OSError, or ConfigurationError if it is cancelled.

    What follows a damaged line in a file, usually the last line before a power cut, is lost.
    """
    contents = Contents()
    damaged: set[int] = set()
    for path in sorted(path for path in folder.iterdir() if SEGMENT_NAME.fullmatch(path.name)):
        segment = int(path.stem)
        contents.sizes[segment] = path.stat().st_size
        contents.weights = pb.ModelFacts()
        with path.open("rb") as file:
            try:
                if (first := file.readline()) != header:
                    records.decode(first)  # a damaged one is an error: the file may have tokens of these requests
                    logger.warning("%s: ignored: it is for another model or of another version", path)
                    continue
                for line in file:
                    if is_cancelled():
                        raise ConfigurationError(f"--journal {folder}: the reading was cancelled")
                    record = records.decode(line)
                    if (previous := records.previous_of(record)) is not None:
                        _compare(*previous, contents, folder, damaged)
                    contents.weights = records.weights_of(record) or contents.weights
                    take_parent(record, contents.requests)
                    records.replay(record, contents.requests, damaged, contents.weights)
            except (RecordError, TypeError, ValueError) as error:
                logger.warning("%s: the rest of the file is ignored: %s", path, error)
                damaged.update(contents.requests)
        for number in contents.requests.keys() - contents.first_segments.keys():
            contents.first_segments[number] = segment
    return contents


def _compare(segment: int, num_bytes: int, contents: Contents, folder: Path, damaged: set[int]) -> None:
    """Compare a file with the size that it had; if records are lost, all requests before it are damaged."""
    if contents.requests and contents.sizes.get(segment, 0) != num_bytes:
        logger.warning("%s: it lacks its end: later tokens of its requests are ignored", segment_path(folder, segment))
        damaged.update(contents.requests)
