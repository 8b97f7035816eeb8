"""Launches through cuda.bindings, and through CuPy without this package, with stand-ins for both."""

from __future__ import annotations

import ctypes
import enum
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import pytest
import torch
from orca_kernels.cuda.arguments import integers
from orca_kernels.cuda.modules import CupyLauncher, Kernel

KERNEL = Kernel("merge.cu", "orca_merge", torch.bfloat16, 64)
STREAM, FUNCTION = 77, 4242


class Result(enum.IntEnum):
    """cuda.bindings.driver.CUresult."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


class Cupy(ModuleType):
    """Records what is compiled and launched."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.cuda = SimpleNamespace(ExternalStream=lambda stream: nullcontext(self.streams.append(stream)))
        self.streams: list[int] = []
        self.options: list[tuple[str, ...]] = []
        self.launches: list[tuple[object, ...]] = []

    def RawModule(self, code: str, options: tuple[str, ...]) -> Cupy:
        assert "orca_merge" in code
        self.options.append(options)
        return self

    def get_function(self, name: str) -> Cupy:
        assert name == "orca_merge"
        return self

    @property
    def kernel(self) -> SimpleNamespace:
        return SimpleNamespace(ptr=FUNCTION)

    def __call__(self, *arguments: object) -> None:
        self.launches.append(arguments)


class Driver(ModuleType):
    """Reads the arguments as the driver does."""

    def __init__(self) -> None:
        super().__init__("cuda.bindings.driver")
        self.CUfunction = lambda pointer: ("function", pointer)
        self.result = Result.CUDA_SUCCESS
        self.launches: list[tuple[object, ...]] = []

    def cuLaunchKernel(self, *numbers: object) -> tuple[Result]:
        *others, addresses, extra = numbers
        pointers = ctypes.cast(addresses, ctypes.POINTER(ctypes.c_void_p))
        types = (ctypes.c_uint64, ctypes.c_int, ctypes.c_float)
        self.launches.append((*others, [kind.from_address(pointers[n]).value for n, kind in enumerate(types)], extra))
        return (self.result,)


@pytest.fixture
def cupy(monkeypatch) -> Cupy:
    monkeypatch.setitem(sys.modules, "cupy", module := Cupy())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=STREAM))
    return module


@pytest.fixture
def driver(monkeypatch) -> Driver:
    package, bindings, module = ModuleType("cuda"), ModuleType("cuda.bindings"), Driver()
    bindings.driver = module
    for name, each in (("cuda", package), ("cuda.bindings", bindings), ("cuda.bindings.driver", module)):
        monkeypatch.setitem(sys.modules, name, each)
    return module


def test_a_launch_through_the_drivers_interface(cupy, driver):
    launcher, tensor = CupyLauncher(), torch.zeros(3)
    for _ in range(2):
        launcher.launch(KERNEL, (5, 6, 7), 128, (tensor, *integers(-9), ctypes.c_float(0.25)))
    arguments = [tensor.data_ptr(), -9, 0.25]
    assert driver.launches == [(("function", FUNCTION), 5, 6, 7, 128, 1, 1, 0, STREAM, arguments, 0)] * 2
    assert cupy.options == [("--std=c++17", "-DORCA_ELEMENT=160", "-DORCA_HEAD_DIM=64")], "compiled once"
    driver.result = Result.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(RuntimeError, match="orca_merge was not launched: CUDA_ERROR_INVALID_VALUE"):
        launcher.launch(KERNEL, (5, 6, 7), 128, (tensor, *integers(-9), ctypes.c_float(0.25)))


def test_a_launch_through_cupy(cupy, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)  # not installed
    tensor = torch.zeros(3)
    arguments = (tensor, *integers(-9), ctypes.c_float(0.25), ctypes.c_longlong(1 << 40))
    CupyLauncher().launch(KERNEL, (5, 6, 7), 128, arguments)
    ((grid, threads, values),) = cupy.launches
    assert (grid, threads, cupy.streams) == ((5, 6, 7), (128,), [STREAM])
    assert list(values) == [tensor.data_ptr(), -9, 0.25, 1 << 40]
    assert [value.dtype.itemsize for value in values] == [8, 4, 4, 8]


def test_without_cupy_there_is_no_launcher(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError):
        CupyLauncher()
