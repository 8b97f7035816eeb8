"""Fixtures of the tests that compare kernels with definitions."""

from __future__ import annotations

import zlib

import pytest
import torch


# On the CPU the reference computes float16.
@pytest.fixture(
    scope="module",
    params=[torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.exhaustive)],
    ids=str,
)
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture(autouse=True)
def seed(request) -> None:
    """Draw the numbers of a test from its name: they do not depend on the tests that ran before it."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
