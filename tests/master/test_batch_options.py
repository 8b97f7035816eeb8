"""Options of batches: defaults, bounds, and what excludes them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from orca_master.batches.config import BatchConfig
from orca_master.commands.batch_options import add_batch_options, batch_config
from orca_master.errors import ConfigurationError


def parsed(*options: str, api_processes: int = 0) -> BatchConfig | None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_batch_options(parser)
    arguments = parser.parse_args(options)
    arguments.api_processes = api_processes
    return batch_config(arguments)


def test_without_a_folder_there_are_no_batches():
    assert parsed() is None
    assert parsed("--max-batch-files", "3", api_processes=2) is None


def test_every_option_has_its_field(tmp_path):
    assert parsed("--batch-directory", str(tmp_path)) == BatchConfig(tmp_path)
    options = ("files", "bytes", "file-bytes", "lines", "line-bytes")
    values = [part for number, name in enumerate(options, 2) for part in (f"--max-batch-{name}", str(number))]
    values += ["--batch-lifetime", "9", "--batch-concurrency", "8"]
    assert parsed("--batch-directory", str(tmp_path), *values) == BatchConfig(tmp_path, 2, 3, 9.0, 4, 5, 6, 8)
    relative = parsed("--batch-directory", "x")
    assert relative is not None
    assert relative.folder == Path("x").absolute()


@pytest.mark.parametrize("option", ["--batch-concurrency=0", "--batch-concurrency=129", "--max-batch-files=-1"])
def test_numbers_have_bounds(option):
    with pytest.raises(argparse.ArgumentError, match="not a whole number from 1"):
        parsed(option)


def test_api_processes_exclude_batches(tmp_path):
    with pytest.raises(ConfigurationError, match="--batch-directory: does not work with --api-processes yet"):
        parsed("--batch-directory", str(tmp_path), api_processes=2)
