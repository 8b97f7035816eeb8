"""Fixtures of the tests that compare kernels with definitions."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch  # The process that only distributes tests imports this file too, and needs no torch.
    from orca_kernels.cpu.library import CpuLibrary
    from orca_kernels.cpu.targets import CpuTarget


# On the CPU the reference computes float16.
@pytest.fixture(
    scope="module",
    params=["float32", "bfloat16", pytest.param("float16", marks=pytest.mark.exhaustive)],
    ids="torch.{}".format,
)
def dtype(request) -> torch.dtype:
    import torch

    return getattr(torch, request.param)


@pytest.fixture(scope="module")
def library(target: CpuTarget | None, instructions: str) -> Iterator[CpuLibrary]:
    """Yield the library of a test's parameters, as support/integer_products.py makes them."""
    from support.integer_products import opened

    with opened(target, instructions) as library:
        yield library


@pytest.fixture(autouse=True)
def seed(request) -> None:
    """Draw the numbers of a test from its name: they do not depend on the tests that ran before it."""
    import torch

    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
