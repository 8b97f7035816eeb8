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


INTEGER_PRODUCTS = ("test_integer_linear.py", "test_grouped_integer_linear.py", "test_likeliest.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests under the emulator of Arm that .ci/run leaves out: they would take a further quarter of an hour.

    The older target differs from the newer one by the instruction that rounds to bfloat16, whose results
    test_emulated_arm.py compares. Products of integers differ by the type only where rows are read and outputs rounded.
    """
    emulated = [item for item in items if item.get_closest_marker("qemu") and item.path.name != "test_emulated_arm.py"]
    for item in emulated:
        names = [getattr(value, "name", str(value)) for value in item.callspec.params.values()]  # type: ignore[attr-defined]
        is_older = "armv8.2-a+bf16" not in names
        if is_older or (item.path.name in INTEGER_PRODUCTS and "torch.float32" in names):
            item.add_marker(pytest.mark.exhaustive)


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
