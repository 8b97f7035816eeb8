"""`Kernels`: the operations of a Transformer layer, one method each. Imports no torch.

Linear maps and attentions are prepared once, when a model is built; the other operations are methods.
Implementations take and return torch tensors on one device. Shapes: S = tokens of the iteration (the paper's ΣL),
R = requests, D = head dimension, N = query heads, G = key/value heads (N is a multiple of G), B = blocks of the pool,
16 slots each. The layout of the pools is the implementation's (`Attention.new_pools`): only the `Attention` that
stores keys and values reads them. In ORCA's own (`block_pools`) a head's block is contiguous, keys as [B, G, D, 16] and
values as [B, G, 16, D]: the scores of 16 slots are one vector, and so are 16 elements of a value; the order of the
elements within a head's block may be another one. Tensors of heads [S, heads, D] may be views of wider rows: only their
last two dimensions are dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from orca_contract.kv_blocks import BLOCK_SIZE

if TYPE_CHECKING:  # the controller imports the model families without torch
    import torch

    from orca_kernels.likeliest import Likeliest
    from orca_kernels.low_rank import LowRank
    from orca_kernels.quantization import QuantizedWeight


GROUP_MULTIPLE = 8
"""Groups of a quantised weight are a multiple of this: a word of cpu/quantized_linear.h has eight numbers."""


def whole_group(inputs: int) -> int:
    """Return the size of a group that has all inputs, a multiple of GROUP_MULTIPLE."""
    return -(-inputs // GROUP_MULTIPLE) * GROUP_MULTIPLE


class Pools(NamedTuple):
    """K/V blocks of one layer."""

    keys: torch.Tensor
    """[B, G, D, 16]."""
    values: torch.Tensor
    """[B, G, 16, D]."""

    @classmethod
    def zeros(
        cls, num_blocks: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> Pools:
        """Return new zeroed pools."""
        import torch

        keys = torch.zeros((num_blocks, num_kv_heads, head_dim, BLOCK_SIZE), dtype=dtype, device=device)
        return cls(keys, keys.new_zeros((num_blocks, num_kv_heads, BLOCK_SIZE, head_dim)))


class Int8Pools(NamedTuple):
    """K/V blocks of one layer as integers (kv_quantization.py), with a scale per slot and head for keys and values."""

    keys: torch.Tensor
    """[B, G, D, 16] int8."""
    values: torch.Tensor
    """[B, G, 16, D] int8."""
    key_scales: torch.Tensor
    """[B, G, 16] float32."""
    value_scales: torch.Tensor
    """[B, G, 16] float32."""

    @classmethod
    def zeros(cls, num_blocks: int, num_kv_heads: int, head_dim: int, device: torch.device) -> Int8Pools:
        """Return new zeroed pools."""
        import torch

        keys, values = Pools.zeros(num_blocks, num_kv_heads, head_dim, torch.int8, device)
        scales = torch.zeros((num_blocks, num_kv_heads, BLOCK_SIZE), device=device)
        return cls(keys, values, scales, torch.zeros_like(scales))


class PagePools(NamedTuple):
    """K/V blocks of one layer in the layout of a paged cache of FlashAttention and FlashInfer: a page is a block."""

    keys: torch.Tensor
    """[B, 16, G, D]."""
    values: torch.Tensor
    """[B, 16, G, D]."""

    @classmethod
    def zeros(
        cls, num_blocks: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> PagePools:
        """Return new zeroed pools."""
        import torch

        shape = (num_blocks, BLOCK_SIZE, num_kv_heads, head_dim)
        return cls(*(torch.zeros(shape, dtype=dtype, device=device) for _ in cls._fields))

    def store(self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """See Attention.store."""
        for pool, rows in zip(self, (key, value), strict=True):
            pool.flatten(0, 1).index_copy_(0, slots, rows)


AnyPools = Pools | Int8Pools | PagePools
"""An `Attention` takes those that its `new_pools` returns."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RaggedBatch:
    """Positions of each request's tokens in this iteration and in the K/V pools."""

    query_start: torch.Tensor
    """[R + 1] int64 on the host: index of each request's first token among the S tokens, then S."""
    context_length: torch.Tensor
    """[R] int64 slots filled before this iteration: on the host, but on the device in a replayed batch."""
    positions: torch.Tensor
    """[S] int64 position of each token in its sequence."""
    slots: torch.Tensor
    """[S] int64 slot of each token in the pools: block id x 16 + index in the block."""
    block_table: torch.Tensor
    """[R, blocks of the longest request] int32 block ids, ordered by position."""


class LinearMap(Protocol):
    """y = x W^T + b for x [S, inputs], optionally fused with an activation or a residual."""

    @property
    def fuses_add(self) -> bool:
        """True if `add` adds the residual within the product; otherwise `Kernels.add_and_norm` may save a pass."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [S, outputs]."""

    def gelu_tanh(self, x: torch.Tensor) -> torch.Tensor:
        """Return GeLU (tanh approximation) of y."""

    def with_gelu_tanh(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return y and what `gelu_tanh` returns, both bit for bit as alone."""

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Return residual + y; residual may be overwritten."""


class Norm(NamedTuple):
    """A norm over the last dimension H."""

    operation: Literal["layer_norm", "rms_norm", "rms_norm_plus_one"]
    """Method of `Kernels`."""
    arguments: tuple[Any, ...]
    """Its arguments after x."""


class Rotation(NamedTuple):
    """Rotary embedding of each token."""

    cosine: torch.Tensor
    """[S, D] float32."""
    sine: torch.Tensor
    """[S, D] float32."""


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """Parameters of one layer's attention. Options default to None, which turns them off.

    A backend lists the options that it supports; the reference computes forms with other options (`fallback.py`).
    """

    head_dim: int
    scale: float
    """Factor of the products of queries and keys."""
    window: int | None = None
    """Sliding window: number of positions that a token attends to, its own included. None: no limit."""
    softcap: float | None = None
    """Cap of the scores x before the softmax: softcap x tanh(x / softcap)."""
    kv_cache_dtype: Literal["int8"] | None = None
    """Element type of the pools. None: that of queries, keys and values."""

    def options(self) -> set[str]:
        """Return the names of the options that are on."""
        return {field.name for field in fields(self) if field.default is None and getattr(self, field.name) is not None}


def block_pools(
    form: AttentionForm, num_blocks: int, num_kv_heads: int, dtype: torch.dtype, device: torch.device
) -> Pools | Int8Pools:
    """Return zeroed pools in ORCA's own layout: see `Attention.new_pools`."""
    if form.kv_cache_dtype == "int8":
        return Int8Pools.zeros(num_blocks, num_kv_heads, form.head_dim, device)
    return Pools.zeros(num_blocks, num_kv_heads, form.head_dim, dtype, device)


class Attention(Protocol):
    """Causal attention of one form over K/V pools."""

    recordable: bool
    """False if the attention reads the lengths of requests on the host, so that a replay would repeat those of the
    recording."""

    def new_pools(self, num_blocks: int, num_kv_heads: int, dtype: torch.dtype, device: torch.device) -> AnyPools:
        """Return zeroed pools in the layout of this attention, for queries, keys and values of `dtype`.

        The first dimension of each tensor is the blocks.
        """

    def store(self, key: torch.Tensor, value: torch.Tensor, pools: AnyPools, slots: torch.Tensor) -> None:
        """Write key and value [S, G, D] to `slots` [S] of the pools."""

    def __call__(self, query: torch.Tensor, pools: AnyPools, batch: RaggedBatch) -> torch.Tensor:
        """Return [S, N, D] for query [S, N, D]; each token attends to its own request's slots.

        Call `store` for this iteration's tokens first.
        """


class AttentionBackendError(Exception):
    """A GPU or a model cannot have the attention that a server demands; the message says why, in one line."""

    @classmethod
    def caused_by(cls, problem: str, error: Exception) -> AttentionBackendError:
        """Return the error of a problem, with the type of its cause and the first line of the cause's message."""
        return cls(": ".join([problem, type(error).__name__, *str(error).splitlines()[:1]]))


class Kernels(Protocol):
    """One implementation of every operation.

    `add_and_norm` and `rotate_and_store` are compositions of other operations, which a backend may fuse.
    """

    name: str
    """For people, as "C++ x86-64-v3"."""
    fixed_order: bool
    """True if each row of a result is the same bit for bit whatever the other rows are. Attention in a form that the
    reference computes is excepted (`AttentionForm`)."""
    quantized_products: frozenset[str]
    """Quantizations of weights (`quantization.BITS`) for which the kernels have products. The reference computes those
    of w8a8 and w4a8 otherwise, and dequantises weights of the others once."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> LinearMap:
        """Prepare W [outputs, inputs] and b [outputs]; the map takes ownership of the tensors."""

    def likeliest(self, weight: torch.Tensor, linear: LinearMap) -> Likeliest | None:
        """Prepare the search for the largest outputs of `linear`, the map of W [outputs, inputs] without bias.

        Returns None if it saves nothing or is not supported.
        """

    def low_rank(self, inputs: int) -> LowRank:
        """Prepare the products of adapters for a linear map with so many inputs; no adapter changes the map yet."""

    def quantized_linear(self, weight: QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype) -> LinearMap:
        """Prepare W and b [outputs] for x of `dtype`; the map takes ownership of the tensors.

        Sums are in float32; for w8a8, and for each group of w4a8, they are exact integers.
        """

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float) -> torch.Tensor:
        """LayerNorm over the last dimension of x [S, H]."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Root mean square norm over the last dimension of x, computed in float32."""

    def rms_norm_plus_one(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Root mean square norm times 1 + weight over the last dimension of x, computed in float32 and rounded once."""

    def gelu_tanh_and_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gelu(gate) x up [S, I] (tanh approximation), for rows [S, 2 I] of gates and then ups."""

    def silu_and_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) x up [S, I], for rows [S, 2 I] of gates and then ups."""

    def rotate(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """Rotary embedding (halves rotated, as in Llama) of x [S, heads, D] with float32 cosine, sine [S, D].

        x may be overwritten.
        """

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention:
        """Prepare the attention of a layer for queries, keys and values of `dtype`."""

    def add_and_norm(
        self, residual: torch.Tensor, addend: torch.Tensor, bias: torch.Tensor | None, norm: Norm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return residual [S, H] + (addend [S, H] + bias [H]), and its norm; residual may be overwritten."""

    def rotate_and_store(
        self,
        queries_and_keys: Sequence[torch.Tensor],
        value: torch.Tensor,
        rotation: Rotation,
        attention: Attention,
        pools: AnyPools,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """Rotate queries and keys, store keys and values by `attention`, and return the queries [S, N, D].

        `queries_and_keys`: together [S, N + G, D], the queries first, as one tensor or as two; may be overwritten.
        """
