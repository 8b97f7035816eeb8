"""Cost models of a stage: a roofline of weights, K/V reads, FLOPs, all-reduces and transfers between stages. Pure.

Each part takes the maximum of its memory time and its compute time at the hardware's published peaks (NVIDIA's data
sheets: dense 16-bit FLOP/s, memory bandwidth, NVLink per direction). Nothing is fitted: real kernels are slower, so a
prediction is a lower bound. calibration.py implements the same interface with times measured on a live engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

ALL_REDUCES_PER_LAYER = 2
"""One after the attention block, one after the MLP (paper, Figure 6)."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device. FLOP/s, bytes/s, bytes, seconds. `network`: bandwidth between machines per device."""

    flops: float
    bandwidth: float
    memory: float
    link: float
    network: float
    message_latency: float = 1e-5


HARDWARE = {
    "a100-40g": Hardware(312e12, 1.555e12, 40e9, 300e9, 25e9),
    "h100": Hardware(989e12, 3.35e12, 80e9, 450e9, 50e9),
    "h200": Hardware(989e12, 4.8e12, 141e9, 450e9, 50e9),
}
"""a100-40g: the paper's machines, hosts with eight GPUs and eight 200 Gb/s adapters (section 6)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A GPT as in the paper's Table 1: MLP width of four times the hidden size, K/V as wide as the hidden state."""

    num_layers: int
    hidden_size: int
    vocabulary: int = 51200
    bytes_per_value: int = 2

    @property
    def layer_parameters(self) -> int:
        """Number of weights of one layer: 4 H^2 for attention, 8 H^2 for the MLP."""
        return 12 * self.hidden_size**2

    @property
    def kv_bytes_per_token_and_layer(self) -> int:
        """Bytes of key and value of one token in one layer."""
        return 2 * self.hidden_size * self.bytes_per_value

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights; head and embeddings share one matrix."""
        parameters = self.num_layers * self.layer_parameters + self.vocabulary * self.hidden_size
        return parameters * self.bytes_per_value


TABLE_1: dict[str, tuple[Shape, int, int]] = {
    "13b": (Shape(40, 5120), 1, 1),
    "101b": (Shape(80, 10240), 1, 8),
    "175b": (Shape(96, 12288), 2, 8),
    "341b": (Shape(120, 15360), 4, 8),
}
"""Name → shape, inter-layer partitions, intra-layer partitions (paper, Table 1)."""


@dataclass(frozen=True, slots=True)
class Work:
    """One request of an iteration: tokens to compute after the cached context."""

    num_tokens: int
    context_length: int


class Amounts(NamedTuple):
    """Amounts that determine the time of an iteration."""

    requests: int
    tokens: int
    cached: int
    """K/V slots that attention reads."""
    pairs: float
    """Query-key pairs of causal attention."""


def amounts(work: Iterable[Work]) -> Amounts:
    """Return the amounts of an iteration."""
    entries = list(work)
    return Amounts(
        len(entries),
        sum(entry.num_tokens for entry in entries),
        sum(entry.context_length + entry.num_tokens for entry in entries),
        sum(entry.num_tokens * (entry.context_length + (entry.num_tokens + 1) / 2) for entry in entries),
    )


class CostModel(Protocol):
    """Interface of cost models for the simulator."""

    @property
    def turnaround_seconds(self) -> float:
        """Time from the end of an iteration on the last stage to its commit in the scheduler."""

    @property
    def between_seconds(self) -> float:
        """Overhead of a stage between two iterations."""

    def stage_seconds(self, stage: int, work: Iterable[Work]) -> float:
        """Return the compute time of an iteration on a stage."""

    def hand_over_seconds(self, work: Iterable[Work]) -> float:
        """Return the transfer time between two stages."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Roofline of `num_partitions` equal stages of `num_ranks` ranks; the head's cost is spread over all stages."""

    hardware: Hardware
    shape: Shape
    num_partitions: int
    num_ranks: int

    @property
    def turnaround_seconds(self) -> float:
        """See CostModel; a roofline does not include the master's work."""
        return 0.0

    @property
    def between_seconds(self) -> float:
        """See CostModel; a roofline does not include the host's work."""
        return 0.0

    def stage_seconds(self, stage: int, work: Iterable[Work]) -> float:
        """See CostModel; all stages are equal."""
        _, tokens, cached, pairs = amounts(work)
        layers = self.shape.num_layers / self.num_partitions
        parameters = self.shape.weight_bytes / self.shape.bytes_per_value / self.num_partitions / self.num_ranks
        linear = max(
            parameters * self.shape.bytes_per_value / self.hardware.bandwidth,
            2 * parameters * tokens / self.hardware.flops,
        )
        attention = layers / self.num_ranks * max(
            cached * self.shape.kv_bytes_per_token_and_layer / self.hardware.bandwidth,
            4 * pairs * self.shape.hidden_size / self.hardware.flops,
        )  # fmt: skip
        return linear + attention + layers * ALL_REDUCES_PER_LAYER * self._all_reduce(tokens)

    def hand_over_seconds(self, work: Iterable[Work]) -> float:
        """See CostModel; rank i sends its copy to rank i of the next machine."""
        if self.num_partitions == 1:
            return 0.0
        size = amounts(work).tokens * self.shape.hidden_size * self.shape.bytes_per_value
        return self.hardware.message_latency + size / self.hardware.network

    def _all_reduce(self, tokens: int) -> float:
        """Return the seconds of a ring all-reduce: each rank sends and receives 2 (T - 1) / T of the tensor."""
        if self.num_ranks == 1:
            return 0.0
        size = tokens * self.shape.hidden_size * self.shape.bytes_per_value
        fraction = 2 * (self.num_ranks - 1) / self.num_ranks
        return self.hardware.message_latency + fraction * size / self.hardware.link

    def kv_slots(self, buffers: float = 0.1) -> int:
        """Return the slots that fit beside weights and a fraction `buffers` of memory; 0 if the weights do not fit."""
        devices = self.num_partitions * self.num_ranks
        free = devices * self.hardware.memory * (1 - buffers) - self.shape.weight_bytes
        return max(0, int(free / (self.shape.num_layers * self.shape.kv_bytes_per_token_and_layer)))
