"""Operations that a backend does not have are the reference's, chosen once and named."""

from __future__ import annotations

import pytest
import torch
from orca_kernels.cpu.kernels import CpuAttention, CpuKernels
from orca_kernels.cpu.library import load
from orca_kernels.cuda.kernels import CudaAttention, CudaKernels
from orca_kernels.cuda.modules import CupyLauncher
from orca_kernels.fallback import Operations
from orca_kernels.interface import AttentionForm
from orca_kernels.reference import ReferenceAttention, ReferenceKernels
from orca_kernels.select import kernels_for

CPU = torch.device("cpu")


class WithoutNorm(CpuKernels):
    """A backend that has no norm of its own."""

    rms_norm = ReferenceKernels.rms_norm


class NoLauncher(CupyLauncher):
    def __init__(self):
        pass


def test_an_operation_that_the_backend_lacks_is_the_references():
    operations = Operations(WithoutNorm(load(), torch.float32))
    norm, rotate = operations.operation("rms_norm"), operations.operation("rotate")
    assert norm.__func__ is ReferenceKernels.rms_norm
    assert rotate.__func__ is CpuKernels.rotate
    assert operations.missing == {"rms_norm"}


@pytest.mark.parametrize(
    ("kernels", "fused"),
    [(CpuKernels(load(), torch.float32), CpuAttention), (CudaKernels(NoLauncher()), CudaAttention)],
)
def test_a_form_of_attention_that_the_backend_does_not_compute(kernels, fused):
    operations = Operations(kernels)
    assert isinstance(operations.attention(AttentionForm(64, 0.125, window=7), torch.float32), fused)
    assert not operations.missing
    assert isinstance(operations.attention(AttentionForm(40, 0.1, window=7), torch.float32), ReferenceAttention)
    assert operations.missing == {"attention with head_dim 40 window"}


def test_the_reference_lacks_nothing():
    operations = Operations(ReferenceKernels())
    operations.operation("rms_norm")
    operations.attention(AttentionForm(40, 0.1), torch.float32)
    assert not operations.missing


def test_a_dtype_without_kernels_gets_plain_torch(caplog):
    assert type(kernels_for(CPU, torch.float16)) is ReferenceKernels
    assert caplog.messages == ["no fused kernels for float16 on this CPU, using plain torch"]
