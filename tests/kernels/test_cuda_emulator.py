"""The emulation of CUDA threads reports the faults of a kernel as an exception and can be used again afterwards."""

from __future__ import annotations

import re

import pytest
import torch
from orca_kernels.cuda import modules
from orca_kernels.cuda.modules import Kernel
from support import cuda_emulator
from support.cuda_emulator import EmulatedLauncher, EmulationError

SOURCE = """
extern "C" __global__ void orca_divide(int *x) { x[2] = 64 / (threadIdx.x - x[1]); }
extern "C" __global__ void orca_read(int *x) { x[0] = reinterpret_cast<int *>(16 * threadIdx.x + 16)[0]; }
extern "C" __global__ void orca_overrun(int *x) {
  __shared__ int held[4];
  held[threadIdx.x + x[1]] = 1;
  x[0] = held[0];
}
extern "C" __global__ void orca_diverge(int *) {
  if (threadIdx.x == 0) __syncwarp();
  else __syncthreads();
}
extern "C" __global__ void orca_end_early(int *x) {
  if (threadIdx.x >= 32) {
    for (int i = 0; i < 8; ++i) __syncwarp();  // the other warp waits by now
    return;
  }
  __syncthreads();
  x[threadIdx.x] = 7;
}
"""


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Launch one block of 64 threads of a kernel of SOURCE."""
    monkeypatch.setattr(modules, "SOURCES", tmp_path)
    monkeypatch.setitem(cuda_emulator.KERNELS, "faults.cu", re.findall(r"void orca_(\w+)", SOURCE))
    (tmp_path / "faults.cu").write_text(SOURCE)
    launcher = EmulatedLauncher(tmp_path)

    def launch(name: str, x: torch.Tensor) -> None:
        launcher.launch(Kernel("faults.cu", f"orca_{name}", torch.float32), (1, 1, 1), 64, (x,))

    return launch


def test_a_fault_of_a_kernel_is_an_exception(launch):
    x = torch.zeros(64, dtype=torch.int32)
    for name, fault in {
        "divide": "integer division by zero or overflow in thread 0 of block (0, 0, 0)",
        "read": "invalid address in thread ",
        "overrun": "undefined behaviour in thread ",
        "diverge": "deadlock at a barrier in thread ",
    }.items():
        with pytest.raises(EmulationError, match=re.escape(f"orca_{name}: {fault}")):
            launch(name, x)
    x[1] = 99  # no thread divides by zero any more
    launch("divide", x)


def test_a_barrier_waits_only_for_threads_that_have_not_ended(launch):
    x = torch.zeros(64, dtype=torch.int32)
    launch("end_early", x)
    assert x.tolist() == [7] * 32 + [0] * 32
