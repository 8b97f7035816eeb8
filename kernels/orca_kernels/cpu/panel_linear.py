"""`PanelLinear`: matrix products of the library, over a weight in panels (cpu/linear.h)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from orca_kernels.cpu.calls import Calls, Function

PANEL = 32
"""Outputs are padded to a multiple of this: a panel has 32 outputs with AVX-512, otherwise 16."""
WORD_BYTES = 4
"""A row of inputs fills whole words of a panel."""


class PanelLinear:
    """A `LinearMap` over cpu/linear.h, quantized_linear.h, integer_linear.h or grouped_integer_linear.h."""

    fuses_add = True

    def __init__(
        self,
        calls: Calls,
        product: Function,
        shape: tuple[int, int],
        panels: tuple[torch.Tensor | None, ...],
        bias: torch.Tensor | None,
        *options: int,
    ) -> None:
        """`shape`: outputs and inputs; `panels`: what `product` reads instead of the weight, None for a null pointer.

        `options`: the last arguments of `product`.
        """
        self.shape = shape
        self.panels = panels
        self._bias = bias
        self._calls = calls
        self._product = product
        self._options = options

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        self._run(x, y := self._output(x))
        return y

    def gelu_tanh(self, x: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        self._run(x, None, activated := self._output(x))
        return activated

    def with_gelu_tanh(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See LinearMap."""
        self._run(x, y := self._output(x), activated := self._output(x))
        return y, activated

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        self._run(x, y := self._output(x), residual=residual.contiguous())
        return y

    def _output(self, x: torch.Tensor) -> torch.Tensor:
        return self._calls.empty((len(x), self.shape[0]), x.dtype)

    def _run(
        self,
        x: torch.Tensor,
        y: torch.Tensor | None,
        activated: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
    ) -> None:
        x = x.contiguous()
        outputs, inputs = self.shape
        self._product(
            x.data_ptr(),
            *map(pointer, (*self.panels, self._bias, residual, y, activated)),
            len(x),
            inputs,
            outputs,
            *self._options,
        )


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Return the address of a tensor's elements, None for None."""
    return None if tensor is None else tensor.data_ptr()


def panels_of(pack: Function, weight: torch.Tensor, empty: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """Return a weight [outputs, inputs] in panels, by the function `pack` for its dtype.

    `empty` returns uninitialised elements of this dtype.
    """
    outputs, inputs = weight.shape
    weight, panels = weight.contiguous(), empty(padded(outputs) * inputs)
    pack(weight.data_ptr(), panels.data_ptr(), inputs, outputs)
    return panels


def padded(outputs: int) -> int:
    """Return the outputs of all panels."""
    return -(-outputs // PANEL) * PANEL
