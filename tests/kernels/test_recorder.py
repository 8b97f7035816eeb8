"""Recordings on the CPU: what a replay computes, in which memory, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from orca_kernels.cpu.kernels import CpuKernels
from orca_kernels.interface import AttentionForm, Pools, RaggedBatch
from orca_kernels.recorder import OperationRecorder
from support.cpu_targets import cpu_target_params, load


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture(params=cpu_target_params())
def kernels(request, dtype) -> CpuKernels:
    return CpuKernels(load(request.param), dtype)


def test_a_replay_computes_with_what_its_inputs_hold_by_then(kernels, dtype):
    """Torch's operations between the kernels, views, operations in place, and products by oneDNN or the library."""
    weight, bias, x = torch.randn(64, 48).to(dtype), torch.randn(64).to(dtype), torch.randn(5, 48).to(dtype)
    norm, rows = torch.randn(32).to(dtype), torch.tensor([4, 0, 2])
    linear, square = kernels.linear(weight.clone(), bias.clone()), kernels.linear(weight[:48].clone(), None)

    def work() -> torch.Tensor:
        first, second = linear(square.add(x[rows].contiguous(), x[2:])).chunk(2, dim=1)
        return kernels.rms_norm(first, norm, 1e-5).add_(kernels.silu_and_multiply(linear.gelu_tanh(x[:3]))) * second

    output, replay = kernels.calls(work)
    torch.testing.assert_close(output, work(), atol=0, rtol=0)
    for _ in range(3):
        x.copy_(torch.randn(5, 48))
        rows.copy_(torch.randint(5, (3,)))
        expected = work()
        replay()
        torch.testing.assert_close(output, expected, atol=0, rtol=0)


def test_recordings_take_turns_on_the_memory_that_they_share(kernels, dtype):
    linears = [kernels.linear(torch.randn(32, 32).to(dtype) / 6, torch.randn(32).to(dtype)) for _ in range(6)]
    inputs = [torch.randn(rows, 32).to(dtype) for rows in (1, 3, 2, 8)]

    def work(x: torch.Tensor) -> torch.Tensor:
        for linear in linears:
            x = linear.add(linear.gelu_tanh(x + 1), x)
        return x

    recorded = [kernels.calls(lambda x=x: work(x)) for x in inputs]
    for _ in range(2):
        for x, (output, replay) in zip(inputs, recorded, strict=True):
            x.normal_()
            replay()
            torch.testing.assert_close(output, work(x), atol=0, rtol=0)


def test_results_of_torchs_operations_share_memory():
    """Else every recording would keep all its intermediate results."""
    places: list[int] = []
    x = torch.zeros(4, 1000)
    recorder = OperationRecorder()

    def work() -> torch.Tensor:
        y = x
        for _ in range(20):
            y = y.t() + 1 if len(y) == 4 else y.t() * 2
            places.append(y.data_ptr())
        return y

    output, replay = recorder(work)
    assert len(set(places)) == 2
    x.fill_(3)
    replay()
    assert torch.equal(output, work())


def test_a_result_without_accessible_memory_is_refused():
    """Such as a weight that is packed for oneDNN; a weight packed before is a constant."""
    x = torch.randn(4, 4)
    with pytest.raises(RuntimeError, match=r"to_mkldnn.* without accessible memory, which cannot be recorded"):
        OperationRecorder()(lambda: x.to_mkldnn().to_dense())
    packed = x.to_mkldnn()
    output, replay = OperationRecorder()(lambda: packed.to_dense() + x)
    x.zero_()
    replay()
    assert torch.equal(output, packed.to_dense())


def test_memory_serves_again_what_comes_later_and_the_next_recording(kernels):
    places: list[list[int]] = []

    def work() -> torch.Tensor:
        first = kernels.calls.empty((4, 8), torch.float32)
        second = kernels.calls.empty((4, 8), torch.bfloat16)
        of_first = first.data_ptr()
        del first
        third = kernels.calls.empty((2, 8), torch.float32)[1:]
        fourth = kernels.calls.empty((4, 9), torch.float32)
        places.append([of_first, second.data_ptr(), third.data_ptr() - 32, fourth.data_ptr()])
        return fourth

    kept, _ = kernels.calls(work)
    again, _ = kernels.calls(work)
    (first, second, third, fourth), others = places
    assert third == first, "which nobody had any more"
    assert len({first, second, fourth}) == 3
    assert others[:3] == [first, second, third]
    assert others[3] != fourth == kept.data_ptr(), "an output that somebody has stays"
    assert again.data_ptr() == others[3]
    outside = kernels.calls.empty((4, 8), torch.float32)
    assert outside.data_ptr() not in {*places[0], *others}


def test_what_reads_lengths_on_the_host_is_refused(kernels, dtype):
    """Heads of 8: the reference's attention."""
    attend = kernels.attention(AttentionForm(8, 1.0), dtype)
    pools = Pools.zeros(2, 2, 8, dtype, torch.device("cpu"))
    zeros = torch.zeros(1, dtype=torch.int64)
    batch = RaggedBatch(torch.arange(2), zeros, zeros, zeros, zeros.int().unsqueeze(1))
    heads = torch.randn(1, 2, 8).to(dtype)
    with pytest.raises(RuntimeError, match="lengths on the host"):
        kernels.calls(lambda: attend(heads, pools, batch))
    assert attend(heads, pools, batch).shape == (1, 2, 8), "outside a recording it is computed"


def test_a_value_that_the_host_reads_is_refused():
    x = torch.tensor([3])
    with pytest.raises(RuntimeError, match="the host cannot read"):
        OperationRecorder()(lambda: x * int(x))


@pytest.mark.long
def test_a_recording_does_not_load_torchs_compiler():
    """Which takes more than a second, in the middle of somebody's second token."""
    program = (
        "import sys, torch; from orca_kernels.recorder import OperationRecorder;"
        "OperationRecorder()(lambda: torch.ones(2) + 1); sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
