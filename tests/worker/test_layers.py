"""Blocks of models on the CUDA kernels, emulated: what is fused, with which launches, and that logits stay the same."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from orca_kernels.cuda.kernels import CudaKernels
from orca_kernels.cuda.modules import Grid, Kernel
from orca_kernels.interface import Norm as NormForm
from orca_kernels.reference import ReferenceKernels, ReferenceLinear
from orca_worker.layers import Norm, RowParallelLinear
from orca_worker.models.family import ModelPartition
from orca_worker.residual import Residual
from orca_worker.tensor_parallel_group import TensorParallelGroup
from support.cuda_emulator import EmulatedLauncher
from support.partitions import PartitionedModel
from support.variants import one_short_row

LENGTHS, NUM_TOKENS = (1, 2, 33, 50, 17), 32
LAYERS = 5
"""Of the checkpoints."""


class CountedLauncher(EmulatedLauncher):
    """Counts launches by kernel, norms with an addend apart. The ranks of a model are threads, which take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self._turn = threading.Lock()

    def launch(self, kernel: Kernel, grid: Grid, threads: int, arguments: Sequence[Any]) -> None:
        added = "_norm" in kernel.name and isinstance(arguments[1], torch.Tensor)
        with self._turn:
            self.launches[f"add and {kernel.name}" if added else kernel.name] += 1
            super().launch(kernel, grid, threads, arguments)


class EmulatedModel(PartitionedModel):
    """Each rank has kernels of its own, as in a process of its own: their work lists belong to one thread."""

    def _build(self, *place: Any) -> ModelPartition:
        (kernels,) = self._kernels
        self._kernels = [CudaKernels(kernels._launcher)]
        return super()._build(*place)


CASES = [
    # cuBLAS accumulates into the residual.
    ("llama-gqa-tied", 1, {"orca_rms_norm": 2 * LAYERS + 1, "orca_rotate_and_store": LAYERS}),
    (
        "llama-gqa-tied", 2,
        {"orca_rms_norm": 2, "add and orca_rms_norm": 2 * LAYERS - 1, "orca_rotate_and_store": LAYERS},
    ),
    # Norms of queries and of keys.
    ("qwen3-gqa-tied", 1, {"orca_rms_norm": 4 * LAYERS + 1, "orca_rotate_and_store": LAYERS}),
    # Maps with a bias.
    ("gpt2-head64-tied", 1, {"orca_layer_norm": 2, "add and orca_layer_norm": 2 * LAYERS - 1, "orca_store": LAYERS}),
    ("gpt2-head64-tied", 2, {"orca_layer_norm": 2, "add and orca_layer_norm": 2 * LAYERS - 1, "orca_store": LAYERS}),
    # A norm between the map and the residual, and a softcap, for which plain torch computes attention.
    (
        "gemma2-gqa-tied", 1,
        {
            "orca_rms_norm_plus_one": 2 * LAYERS + 2, "add and orca_rms_norm_plus_one": 2 * LAYERS - 1,
            "orca_rotate": LAYERS,
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("variant", "ranks", "launches"), one_short_row(CASES))
def test_launches_of_a_prompt_and_of_increments(variant, ranks, launches, checkpoint, references):
    """Residuals are added by norms, and heads rotated and stored, in one launch each; logits are transformers'."""
    expected = references(variant, LENGTHS, NUM_TOKENS)
    launcher = CountedLauncher()
    model = EmulatedModel(checkpoint(variant), 1, ranks, kernels=[CudaKernels(launcher)])
    prompts = [(row, 0, list(reference.prompt)) for row, reference in enumerate(expected)]
    increments = [(row, len(reference.prompt), [reference.greedy[0]]) for row, reference in enumerate(expected)]
    wanted = [
        torch.cat([reference.logits[: len(reference.prompt)] for reference in expected]),
        torch.stack([reference.logits[len(reference.prompt)] for reference in expected]),
    ]
    for parts, logits in zip((prompts, increments), wanted, strict=True):
        launcher.launches.clear()
        torch.testing.assert_close(model.logits(model.iteration(parts, 96)), logits, atol=1e-4, rtol=0)
        counted = {name: count for name, count in launcher.launches.items() if name.split("_", 1)[1] in OF_ROWS}
        assert counted == {name: count * ranks for name, count in launches.items()}


OF_ROWS = {"rms_norm", "layer_norm", "rms_norm_plus_one", "rotate", "store", "rotate_and_store"}


def one_map(bias: torch.Tensor | None, fuses_add: bool) -> ReferenceLinear:
    made = ReferenceLinear(torch.eye(3), bias)
    made.fuses_add = fuses_add
    return made


@pytest.mark.parametrize("fuses_add", [True, False])
def test_a_residual_is_added_by_the_product_or_left_to_the_norm(fuses_add):
    x, hidden, bias = torch.rand(2, 3), torch.rand(2, 3), torch.rand(3)
    residual = RowParallelLinear(one_map(bias, fuses_add), None, TensorParallelGroup()).add(x, hidden)
    assert (residual.addend is None) == fuses_add
    torch.testing.assert_close(residual.total(), hidden + x + bias)
    kernels = ReferenceKernels()
    norm = Norm(kernels, kernels.rms_norm, NormForm("rms_norm", (torch.ones(3), 1e-6)))
    total, normed = norm.of(residual)
    assert torch.equal(total, residual.total())
    assert torch.equal(normed, norm(total))


def test_the_bias_of_several_ranks_is_added_with_the_residual():
    """To the sum of their products, once."""

    class TwoRanks(TensorParallelGroup):
        def sum(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    x, hidden, bias = torch.rand(2, 3), torch.rand(2, 3), torch.rand(3)
    residual = RowParallelLinear(one_map(None, True), bias, TwoRanks(0, 2)).add(x, hidden)
    assert residual.hidden is hidden
    assert residual.bias is bias
    torch.testing.assert_close(residual.total(), hidden + 2 * x + bias)
    assert Residual(hidden).total() is hidden
