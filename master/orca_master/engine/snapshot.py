"""`EngineSnapshot`: the immutable value that the engine's loop publishes and other threads read."""

from __future__ import annotations

from typing import NamedTuple

from orca_contract.state import EngineState, PipelineReport
from orca_contract.topology import Topology


class EngineSnapshot(NamedTuple):
    """The engine at one moment. One is made for every iteration, so it is a tuple."""

    state: EngineState
    failure: str
    """Why the engine is in this state; "" while it serves."""
    topology: Topology
    pipelines: tuple[PipelineReport, ...] = ()
    vocabulary_size: int = 0
    """0, as the next two, before the engine has served."""
    max_model_len: int = 0
    num_slots: int = 0
    """K/V slots of the largest pipeline that serves."""
    cache_usage: float = 0.0
    """Held share of the K/V slots of all pipelines that serve, in [0, 1]."""
    num_running: int = 0
    """Requests that hold K/V slots."""
    num_waiting: int = 0
    """Requests in the queue."""
    num_iterations: int = 0
    """Iterations that have returned."""
    progressed_at: float = 0.0
    """When an iteration returned or a pipeline began to serve, in seconds of the monotonic clock."""
