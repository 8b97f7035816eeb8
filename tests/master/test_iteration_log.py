"""`IterationLog`: a line per iteration, and a server that serves on when its disk is full."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from orca_master.errors import ConfigurationError
from orca_master.metrics.iteration_log import IterationLog
from orca_master.scheduling.batch import Batch
from orca_protos import engine_pb2 as pb


def iterate(log: IterationLog, sequence: int) -> None:
    log.on_dispatch(sequence, Batch("p0", ()))
    for partition in range(2):
        log.on_timing("p0", pb.StageTiming(sequence=sequence, partition=partition, started_ns=5, ended_ns=6))


def sequences(path: Path) -> list[int]:
    return [json.loads(line)["sequence"] for line in path.read_text().splitlines()]


def test_a_restarted_master_continues_the_file(tmp_path):
    path = tmp_path / "log"
    for continues in (False, True):
        log = IterationLog(path, 2, continues)
        iterate(log, 1)
        iterate(log, 2)
    assert sequences(path) == [1, 2, 1, 2]
    iterate(IterationLog(path, 2), 7)
    assert sequences(path) == [7]


def test_the_how_to_has_the_fields_of_a_line(tmp_path):
    path = tmp_path / "log"
    iterate(IterationLog(path, 2), 1)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "metrics.md").read_text(encoding="utf-8")
    (example,) = [json.loads(line) for line in page.splitlines() if line.startswith('    {"pipeline"')]
    assert example.keys() == json.loads(path.read_text()).keys()


def test_a_torn_line_is_dropped(tmp_path):
    """A reader parses every line."""
    path = tmp_path / "log"
    iterate(IterationLog(path, 2), 1)
    with path.open("a") as file:
        file.write('{"sequence": 2, "num_t')
    iterate(IterationLog(path, 2, continues=True), 3)
    assert sequences(path) == [1, 3]


def test_a_full_disk_ends_the_log_and_nothing_else(caplog):
    log = IterationLog(Path("/dev/full"), 2)
    with caplog.at_level(logging.ERROR):
        iterate(log, 1)
        iterate(log, 2)
    (record,) = caplog.records
    assert record.getMessage() == ("--iteration-log /dev/full: No space left on device: the log ends, serving goes on")


def test_a_file_that_cannot_be_opened_is_named_at_the_start_and_tolerated_at_a_restart(tmp_path):
    path = tmp_path / "missing" / "log"
    with pytest.raises(ConfigurationError, match=f"--iteration-log {path}: No such file"):
        IterationLog(path, 2)
    iterate(IterationLog(path, 2, continues=True), 1)
