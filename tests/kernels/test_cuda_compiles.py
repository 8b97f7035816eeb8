"""The CUDA sources compile for the GPUs that they are meant for: with NVRTC from PyPI, without a GPU or a toolkit."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from cuda_resources import resources
from orca_kernels.cuda.modules import ELEMENTS, Kernel, attention_source, program
from orca_kernels.cuda.work import PLAN
from support.cubins import cubin_bytes
from support.variants import one_short

ROWS = [Kernel("rows.cu", "orca_layer_norm", dtype) for dtype in ELEMENTS]
SHAPES = [(dtype, head_dim) for dtype in ELEMENTS for head_dim in (32, 64, 80, 128, 256)]
ATTENTION = [Kernel(attention_source(*shape) or "", "orca_attention", *shape) for shape in SHAPES]
MERGE = [Kernel("merge.cu", "orca_merge", *shape) for shape in SHAPES]
SAMPLING = [Kernel("sampling.cu", "orca_sample", dtype) for dtype in ELEMENTS]


def marked(kernel: Kernel) -> Any:
    """Mark what repeats another kernel `long`: float16 repeats bfloat16, and the models' logits are float32."""
    repeats = kernel.dtype == torch.float16 or (kernel in SAMPLING and kernel.dtype != torch.float32)
    return pytest.param(kernel, marks=pytest.mark.long if repeats else ())


KERNELS = [*map(marked, [*ROWS, *ATTENTION, *MERGE, *SAMPLING, PLAN])]


@pytest.mark.parametrize("architecture", one_short(["sm_80", "sm_90"], "sm_90"))
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda it: it.source + "".join(it.macros))
def test_a_cubin_comes_out(kernel, architecture):
    functions = resources(cubin_bytes(kernel, architecture), architecture)
    assert set(functions) == set(re.findall(r"void (?:__launch_bounds__\(.*\)\s+)?(orca_\w+)", program(kernel.source)))
    assert kernel.name in functions
    assert all(needs.stack == 0 for needs in functions.values()), "arrays are registers, and no register is spilled"
