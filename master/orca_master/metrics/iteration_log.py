"""`IterationLog`: writes one JSON line per iteration, with its batch and the start and end times of each stage.

Input of `orca simulate --calibration`, and a diagnostic for pipeline bubbles. A line is written when the last timing
of its iteration arrives.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import IO

from orca_protos import engine_pb2 as pb

from orca_master.errors import ConfigurationError
from orca_master.scheduling.batch import Batch

logger = logging.getLogger(__name__)

LONGEST_LINE = 1 << 20
"""Bytes, more than a line of thousands of requests has."""


class IterationLog:
    """An `EngineObserver`. `continues`: a killed master has begun the file.

    Raises ConfigurationError if the file cannot be opened. Once the server runs, also as a restarted master, an error
    of the file only ends the log.
    """

    def __init__(self, path: Path, num_partitions: int, continues: bool = False) -> None:
        self._path = path
        self._file: IO[str] | None = None
        try:
            if continues:
                _drop_torn_line(path)
            self._file = path.open("a" if continues else "w", encoding="utf-8", buffering=1)
        except OSError as error:
            if not continues:
                raise ConfigurationError(f"--iteration-log {path}: {error.strerror}") from error
            self._end(error)
        self._num_partitions = num_partitions
        self._open: dict[tuple[str, int], tuple[Batch, dict[int, tuple[float, float]]]] = {}

    def on_dispatch(self, sequence: int, batch: Batch) -> None:
        """See EngineObserver. Replaces an iteration of a lost pipeline with the same number."""
        self._open[batch.pipeline, sequence] = batch, {}

    def on_preemption(self, count: int) -> None:
        """See EngineObserver."""

    def on_drafts(self, num_drafts: int, num_tokens: int, num_accepted: int) -> None:
        """See EngineObserver."""

    def on_first_token(self, queue_seconds: float, prefill_seconds: float) -> None:
        """See EngineObserver."""

    def on_timing(self, pipeline: str, timing: pb.StageTiming) -> None:
        """See EngineObserver."""
        batch, stages = self._open[pipeline, timing.sequence]
        stages[timing.partition] = (timing.started_ns / 1e9, timing.ended_ns / 1e9)
        if len(stages) < self._num_partitions:
            return
        del self._open[pipeline, timing.sequence]
        line = {
            "pipeline": pipeline,
            "sequence": timing.sequence,
            "num_tokens": [scheduled.num_inputs for scheduled in batch.requests],
            "context_length": [scheduled.context_length for scheduled in batch.requests],
            "stages": [stages[partition] for partition in range(self._num_partitions)],
        }
        if self._file is not None:
            try:
                self._file.write(json.dumps(line) + "\n")
            except OSError as error:
                self._end(error)

    def _end(self, error: OSError) -> None:
        logger.error("--iteration-log %s: %s: the log ends, serving goes on", self._path, error.strerror)
        if self._file is not None:
            with contextlib.suppress(OSError):  # flushes what could not be written
                self._file.close()
            with contextlib.suppress(OSError):
                _drop_torn_line(self._path)
        self._file = None


def _drop_torn_line(path: Path) -> None:
    """Cut the file after its last whole line: each reader parses every line. Raises OSError."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - LONGEST_LINE))
        tail = file.read(LONGEST_LINE)
        file.truncate(end - len(tail) + tail.rfind(b"\n") + 1)
