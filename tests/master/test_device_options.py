"""Device and data plane of a command line: the defaults of each other, and what excludes each other."""

from __future__ import annotations

import argparse

import pytest
from orca_master.commands.device_options import add_device_options, devices_in_use
from orca_master.errors import ConfigurationError


def chosen(default_device: str | None, *options: str, ranks: int = 1, all_reduce: str = "library") -> tuple[str, str]:
    parser = argparse.ArgumentParser()
    add_device_options(parser, default_device)
    parser.set_defaults(tensor_parallel_size=ranks, all_reduce=all_reduce)
    return devices_in_use(parser.parse_args(options))


@pytest.mark.parametrize(
    ("default", "options", "expected"),
    [
        ("cpu", [], ("cpu", "gloo")),
        ("cpu", ["--device", "cuda"], ("cuda", "nccl")),
        ("cpu", ["--device", "cuda", "--communication-backend", "gloo"], ("cuda", "gloo")),
        (None, [], ("cpu", "gloo")),
        (None, ["--communication-backend", "nccl"], ("cuda", "nccl")),
        (None, ["--communication-backend", "gloo"], ("cpu", "gloo")),
        (None, ["--device", "cuda"], ("cuda", "nccl")),
        (None, ["--device", "cuda", "--communication-backend", "gloo"], ("cuda", "gloo")),
    ],
)
def test_each_has_a_default_that_fits_the_other(default, options, expected):
    assert chosen(default, *options) == expected


@pytest.mark.parametrize(
    ("default", "options", "ranks", "message"),
    [
        ("cpu", ["--communication-backend", "nccl"], 1, "--communication-backend nccl: needs GPUs, use gloo or"),
        (None, ["--device", "cpu", "--communication-backend", "nccl"], 1, "--communication-backend nccl: needs GPUs"),
        (None, ["--device", "cuda", "--communication-backend", "gloo"], 2, "--tensor-parallel-size 2: on GPUs the"),
    ],
)
def test_what_no_worker_can_do_is_refused_with_the_options(default, options, ranks, message):
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        chosen(default, *options, ranks=ranks)


def test_an_all_reduce_is_checked_beside_them():
    cuda = ("--device", "cuda")
    assert chosen("cpu", *cuda, ranks=8, all_reduce="symmetric") == ("cuda", "nccl")
    with pytest.raises(ConfigurationError, match=r"^--all-reduce symmetric: needs GPUs"):
        chosen("cpu", all_reduce="symmetric")
    with pytest.raises(ConfigurationError, match=r"^--all-reduce symmetric: needs GPUs"):
        chosen("cpu", *cuda, "--communication-backend", "gloo", all_reduce="symmetric")
    with pytest.raises(ConfigurationError, match=r"^--all-reduce symmetric: for 2 to 8 ranks per worker"):
        chosen("cpu", *cuda, ranks=9, all_reduce="symmetric")
