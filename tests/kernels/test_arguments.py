"""Packed arguments of CUDA kernels: the memory that the driver reads."""

from __future__ import annotations

import ctypes

import pytest
import torch
from orca_kernels.cuda.arguments import integers, pack


def test_the_driver_finds_each_argument_behind_its_address():
    tensor = torch.arange(3)
    packed = pack((tensor, ctypes.c_float(0.5), *integers(7, -8)))
    types = (ctypes.c_uint64, ctypes.c_float, ctypes.c_int, ctypes.c_int)
    found = [kind.from_address(address).value for kind, address in zip(types, packed.addresses, strict=True)]
    assert found == [tensor.data_ptr(), 0.5, 7, -8]


def test_integers_are_converted_once():
    assert all(a is b for a, b in zip(integers(1, 2), integers(1, 2), strict=True))
    assert [value.value for value in integers(-(1 << 31), (1 << 31) - 1)] == [-(1 << 31), (1 << 31) - 1]
    with pytest.raises(OverflowError, match="2147483648 is too large for a kernel's parameter of 32 bits"):
        integers(1, 1 << 31)
