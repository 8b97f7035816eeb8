"""Bytes and FLOPs that each kernel needs at least, which the benchmarks print beside measured times.

Bytes: every operand is read once from memory and every result written once; caches are not considered. FLOPs: an
addition and a multiplication are two; softmax, norms and other operations on single elements count none. `width`: bytes
of an element. Sizes are those of one rank. What really runs reads more: a prompt's tiles read keys and values again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

FLOAT = 4
"""Bytes of a float32."""

Parts = Sequence[tuple[int, int]]
"""Slots before, and tokens, of each request of an iteration."""


class Model(Protocol):
    """Sizes of a model, as the worker's `ModelConfig` has them, which this package does not import."""

    @property
    def num_layers(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def rope(self) -> object | None: ...


@dataclass(frozen=True, slots=True)
class Estimate:
    """Least work of a kernel, or of several."""

    bytes: float
    flops: float = 0

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.bytes + other.bytes, self.flops + other.flops)

    def __mul__(self, count: float) -> Estimate:
        return Estimate(self.bytes * count, self.flops * count)

    def seconds(self, bandwidth: float, rate: float = float("inf")) -> float:
        """Return the lower bound of the time at this bandwidth (bytes/s) and rate (FLOP/s)."""
        return max(self.bytes / bandwidth, self.flops / rate)

    def beside(self, microseconds: float) -> str:
        """Return the achieved rates of a measured time, for people."""
        rates = f"{self.bytes / microseconds / 1e3:.1f} GB/s"
        return f"{rates}, {self.flops / microseconds / 1e3:.0f} GFLOP/s" if self.flops else rates


def linear(rows: int, inputs: int, outputs: int, width: float, weight_width: float | None = None) -> Estimate:
    """Estimate a linear map; `weight_width`: bytes of a weight if it is quantised (scales not counted)."""
    weights = inputs * outputs * (width if weight_width is None else weight_width)
    return Estimate(weights + rows * (inputs + outputs) * width, 2 * rows * inputs * outputs)


def attention(parts: Parts, heads: int, kv_heads: int, head_dim: int, width: float) -> Estimate:
    """Estimate causal attention without a window: products of queries and keys, and of weights and values."""
    slots = sum(context + count for context, count in parts)
    tokens = sum(count for _, count in parts)
    pairs = sum(count * (context + (count + 1) / 2) for context, count in parts)
    read = 2 * slots * kv_heads + 2 * tokens * heads
    return Estimate(read * head_dim * width, 4 * pairs * heads * head_dim)


def partial_results(splits: Sequence[tuple[int, int]], kv_heads: int, head_dim: int) -> Estimate:
    """Estimate the results of split contexts, written and then merged. `splits`: splits and rows of each tile."""
    rows = sum(count * rows for count, rows in splits if count > 1)
    return Estimate(2 * rows * kv_heads * (head_dim + 2) * FLOAT)


def store(rows: int, kv_heads: int, head_dim: int, width: float) -> Estimate:
    """Estimate the store of new tokens' keys and values, read from activations and written to the pools."""
    return Estimate(4 * rows * kv_heads * head_dim * width)


def norm(rows: int, size: int, width: float, weights: int = 1) -> Estimate:
    """Estimate a norm; `weights`: 1 (root mean square norm) or 2 (layer norm, with a bias)."""
    return Estimate((2 * rows + weights) * size * width)


def added_norm(rows: int, size: int, width: float, weights: int = 1) -> Estimate:
    """Estimate a residual to which an addend is added, and the norm of the sum; `weights` as in `norm`."""
    return Estimate((4 * rows + weights) * size * width)


def gated_activation(rows: int, size: int, width: float) -> Estimate:
    """Estimate a gated activation, of gates and ups [rows, 2 size] to [rows, size]."""
    return Estimate(3 * rows * size * width)


def rotation(rows: int, heads: int, head_dim: int, width: float) -> Estimate:
    """Estimate a rotary embedding in place, with cosines and sines in float32."""
    return Estimate(2 * rows * head_dim * (heads * width + FLOAT))


def rotation_and_store(rows: int, heads: int, kv_heads: int, head_dim: int, width: float) -> Estimate:
    """Estimate the rotary embedding of queries in place and of keys, and their and the values' store in the pools.

    The rotated keys are not written back to the activations, nor read again.
    """
    return rotation(rows, heads, head_dim, width) + store(rows, kv_heads, head_dim, width)


def parameters(config: Model) -> tuple[int, int]:
    """Return the number of parameters of the layers, without norms and biases, and of the head."""
    heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim * config.hidden_size
    matrices = 2 if config.rope is None else 3  # GPT-2's, or gate, up and down
    layer = heads + matrices * config.hidden_size * config.intermediate_size
    return config.num_layers * layer, config.vocabulary_size * config.hidden_size


def increments(config: Model, size: int, context: int, width: float) -> Estimate:
    """Estimate an iteration of `size` increments: weights, keys and values; activations are not counted."""
    weights = sum(parameters(config))
    cached = 2 * size * context * config.num_layers * config.num_kv_heads * config.head_dim
    flops = 4 * size * context * config.num_layers * config.num_heads * config.head_dim
    return Estimate((weights + cached) * width, 2 * size * weights + flops)


def prompt(config: Model, tokens: int, width: float) -> Estimate:
    """Estimate a prompt's products with the weights of the layers, without the head and attention."""
    layers, _ = parameters(config)
    return Estimate(layers * width, 2 * tokens * layers)
