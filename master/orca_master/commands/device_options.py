"""`--device` and `--communication-backend`: the devices of the workers, and the data plane between them."""

from __future__ import annotations

import argparse
from typing import NamedTuple, get_args

from orca_contract.model_choices import (
    Backend,
    Device,
    all_reduce_refusal,
    backend_of,
    backend_refusal,
    device_of,
    tensor_parallel_refusal,
)

from orca_master.errors import ConfigurationError


class DevicesInUse(NamedTuple):
    """Device of the workers, and backend of their data plane."""

    device: Device
    backend: Backend


def add_device_options(parser: argparse.ArgumentParser, default_device: Device | None) -> None:
    """Add the options; `default_device` None: that of the backend."""
    default = "cuda with --communication-backend nccl, otherwise cpu" if default_device is None else default_device
    parser.add_argument(
        "--device", choices=get_args(Device), default=default_device, help=f"device of the workers ({default})"
    )
    parser.add_argument(
        "--communication-backend",
        choices=get_args(Backend),
        help="data plane between the workers; gloo on GPUs: through host memory, with --tensor-parallel-size 1, and "
        "ranks may share a GPU (nccl with --device cuda, otherwise gloo)",
    )


def devices_in_use(arguments: argparse.Namespace) -> DevicesInUse:
    """Return the choice of the command line; raise ConfigurationError, also for an all-reduce that excludes it."""
    device: Device | None = arguments.device
    backend: Backend | None = arguments.communication_backend
    if device is None:
        device = device_of(backend or "gloo")
    chosen = DevicesInUse(device, backend or backend_of(device))
    if refusal := backend_refusal(*chosen):
        raise ConfigurationError(f"--communication-backend {refusal}")
    if refusal := tensor_parallel_refusal(arguments.tensor_parallel_size, *chosen):
        raise ConfigurationError(f"--tensor-parallel-size {refusal}")
    check_all_reduce(arguments, arguments.tensor_parallel_size, chosen.backend)
    return chosen


def check_all_reduce(arguments: argparse.Namespace, tensor_parallel_size: int, backend: Backend) -> None:
    """Raise ConfigurationError for an all-reduce that workers with these settings refuse."""
    if refusal := all_reduce_refusal(arguments.all_reduce, tensor_parallel_size, backend):
        raise ConfigurationError(f"--all-reduce {refusal}")
