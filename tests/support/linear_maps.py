"""Checks of any `orca_kernels.interface.LinearMap`."""

from __future__ import annotations

import torch
from orca_kernels.interface import LinearMap


def assert_one_product_gives_both(linear: LinearMap, x: torch.Tensor) -> None:
    """Assert that `with_gelu_tanh` gives the bits of the map and of its GeLU alone."""
    y, activated = linear.with_gelu_tanh(x)
    assert torch.equal(y, linear(x))
    assert torch.equal(activated, linear.gelu_tanh(x))
