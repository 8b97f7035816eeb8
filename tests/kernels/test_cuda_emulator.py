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
#include "copies.cuh"
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
#define COPY                \\
  __shared__ Words held[65]; \\
  Words *own = held + threadIdx.x; \\
  const Words *from = reinterpret_cast<Words *>(x)
extern "C" __global__ void orca_copy(int *x) {
  COPY;
  copy_async(own, from);
  commit_copies();
  const unsigned early = own->word[0];
  copy_async(held + 64, from + 1);
  commit_copies();
  await_copies<1>();  // for the first of the two
  const unsigned first = own->word[0], second = held[64].word[0];
  await_copies<0>();
  if (threadIdx.x) return;
  x[8] = early;
  x[9] = first;
  x[10] = second;
  x[11] = held[64].word[3];
}
extern "C" __global__ void orca_read_neighbour(int *x) {  // without a barrier: only sometimes in time
  COPY;
  copy_async(own, from);
  commit_copies();
  __syncthreads();  // all copies have begun
  await_copies<0>();
  const unsigned neighbour = held[threadIdx.x ^ 1].word[0];
  __syncthreads();
  x[threadIdx.x] = neighbour;
}
extern "C" __global__ void orca_copy_without_wait(int *x) {
  COPY;
  copy_async(own, from);
  commit_copies();
}
extern "C" __global__ void orca_copy_without_group(int *x) {
  COPY;
  copy_async(own, from);
}
extern "C" __global__ void orca_copy_misaligned(int *x) {
  COPY;
  copy_async(own, reinterpret_cast<const Words *>(reinterpret_cast<const int *>(from) + 1));
}
"""
COPIES = (modules.SOURCES / "copies.cuh").read_text()
POISON = -1
"""The value of a destination before its copy is waited for."""


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Launch one block of 64 threads of a kernel of SOURCE."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "faults.cu").write_text(SOURCE)
    (folder / "copies.cuh").write_text(COPIES)
    launcher = EmulatedLauncher(folder)

    def launch(name: str, x: torch.Tensor) -> None:
        launcher.launch(Kernel("faults.cu", f"orca_{name}", torch.float32), (1, 1, 1), 64, (x,))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules, "SOURCES", folder)
        patch.setitem(cuda_emulator.KERNELS, "faults.cu", re.findall(r"void orca_(\w+)", SOURCE))
        yield launch


def test_a_fault_of_a_kernel_is_an_exception(launch):
    x = torch.zeros(64, dtype=torch.int32)
    for name, fault in {
        "divide": "integer division by zero or overflow in thread 0 of block (0, 0, 0)",
        "read": "invalid address in thread ",
        "overrun": "undefined behaviour in thread ",
        "diverge": "deadlock at a barrier in thread ",
        "copy_without_wait": "asynchronous copies that nobody waited for in thread ",
        "copy_without_group": "asynchronous copies without a group in thread ",
        "copy_misaligned": "misaligned asynchronous copy in thread ",
    }.items():
        with pytest.raises(EmulationError, match=re.escape(f"orca_{name}: {fault}")):
            launch(name, x)
    x[1] = 99  # no thread divides by zero any more
    launch("divide", x)


def test_a_barrier_waits_only_for_threads_that_have_not_ended(launch):
    x = torch.zeros(64, dtype=torch.int32)
    launch("end_early", x)
    assert x.tolist() == [7] * 32 + [0] * 32


def test_a_copy_is_there_after_the_wait_for_its_group_and_not_before(launch):
    x = torch.arange(1, 65, dtype=torch.int32)
    launch("copy", x)
    assert x[8:12].tolist() == [POISON, 1, POISON, 8]


def test_a_copy_of_another_thread_is_there_after_a_barrier_only(launch):
    x = torch.ones(64, dtype=torch.int32)
    launch("read_neighbour", x)
    assert set(x.tolist()) == {POISON, 1}
