"""`OnDevice`: kernels of another device, called with tensors on the host, so that the same tests cover all devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from orca_kernels.interface import (
    AnyPools,
    Attention,
    AttentionForm,
    Kernels,
    LinearMap,
    Norm,
    RaggedBatch,
    Rotation,
)
from orca_kernels.quantization import QuantizedWeight


class OnDevice:
    """Implements `orca_kernels.interface.Kernels`: copies arguments to the device, and results and changes back."""

    def __init__(self, kernels: Kernels, device: torch.device) -> None:
        self._kernels = kernels
        self._device = device

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> LinearMap:
        return _Map(self, self._kernels.linear(self.moved(weight), None if bias is None else self.moved(bias)))

    def quantized_linear(self, weight: QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype) -> LinearMap:
        there = replace(
            weight,
            numbers=self.moved(weight.numbers),
            scales=self.moved(weight.scales),
            order=None if weight.order is None else self.moved(weight.order),
        )
        return _Map(self, self._kernels.quantized_linear(there, None if bias is None else self.moved(bias), dtype))

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float) -> torch.Tensor:
        return self._kernels.layer_norm(self.moved(x), self.moved(weight), self.moved(bias), epsilon).cpu()

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        return self._kernels.rms_norm(self.moved(x), self.moved(weight), epsilon).cpu()

    def rms_norm_plus_one(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        return self._kernels.rms_norm_plus_one(self.moved(x), self.moved(weight), epsilon).cpu()

    def add_and_norm(
        self, residual: torch.Tensor, addend: torch.Tensor, bias: torch.Tensor | None, norm: Norm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        arguments = tuple(self.moved(each) if isinstance(each, torch.Tensor) else each for each in norm.arguments)
        there = None if bias is None else self.moved(bias)
        total, normed = self._kernels.add_and_norm(
            self.moved(residual), self.moved(addend), there, norm._replace(arguments=arguments)
        )
        return total.cpu(), normed.cpu()

    def silu_and_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._kernels.silu_and_multiply(self.moved(gate_up)).cpu()

    def rotate(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        there = self.moved(x)
        rotated = self._kernels.rotate(there, self.moved(cosine), self.moved(sine)).cpu()
        whole(x).copy_(whole(there))
        return rotated

    def rotate_and_store(
        self,
        queries_and_keys: Sequence[torch.Tensor],
        value: torch.Tensor,
        rotation: Rotation,
        attention: Attention,
        pools: AnyPools,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        assert isinstance(attention, _Attention)
        there = type(pools)(*map(self.moved, pools))
        moved = (list(map(self.moved, queries_and_keys)), self.moved(value), Rotation(*map(self.moved, rotation)))
        query = self._kernels.rotate_and_store(*moved, attention.there, there, self.moved(slots))
        for host, device in zip(pools, there, strict=True):
            whole(host).copy_(whole(device))
        return query.cpu()

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention:
        return _Attention(self, self._kernels.attention(form, dtype))

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the device, including all memory of a view's base, so that stray writes are detected."""
        there = whole(tensor).to(self._device, copy=True)
        return there.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return all elements of the tensor's storage."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)


class _Map:
    """Implements `orca_kernels.interface.LinearMap`."""

    def __init__(self, device: OnDevice, there: LinearMap) -> None:
        self._device = device
        self._there = there
        self.fuses_add = there.fuses_add

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._there(self._device.moved(x)).cpu()

    def gelu_tanh(self, x: torch.Tensor) -> torch.Tensor:
        return self._there.gelu_tanh(self._device.moved(x)).cpu()

    def with_gelu_tanh(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, activated = self._there.with_gelu_tanh(self._device.moved(x))
        return y.cpu(), activated.cpu()

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._there.add(self._device.moved(x), self._device.moved(residual)).cpu()


class _Attention:
    """Implements `orca_kernels.interface.Attention`."""

    def __init__(self, device: OnDevice, there: Attention) -> None:
        self._device = device
        self.there = there
        self.recordable = there.recordable

    def new_pools(self, num_blocks: int, num_kv_heads: int, dtype: torch.dtype, device: torch.device) -> AnyPools:
        return self.there.new_pools(num_blocks, num_kv_heads, dtype, device)

    def store(self, key: torch.Tensor, value: torch.Tensor, pools: AnyPools, slots: torch.Tensor) -> None:
        moved = self._device.moved
        there = type(pools)(*map(moved, pools))
        self.there.store(moved(key), moved(value), there, moved(slots))
        for host, device in zip(pools, there, strict=True):
            whole(host).copy_(whole(device))

    def __call__(self, query: torch.Tensor, pools: AnyPools, batch: RaggedBatch) -> torch.Tensor:
        moved = self._device.moved
        there = replace(
            batch, positions=moved(batch.positions), slots=moved(batch.slots), block_table=moved(batch.block_table)
        )
        return self.there(moved(query), type(pools)(*map(moved, pools)), there).cpu()
