"""Fixtures of the tests that compare kernels with definitions."""

from __future__ import annotations

import pytest
import torch


# On the CPU the reference computes float16.
@pytest.fixture(
    scope="module", params=[torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.long)], ids=str
)
def dtype(request) -> torch.dtype:
    return request.param
