"""Phase-aligned batching: what challenge C2 leaves of batching without selective batching (paper, section 3.1).

Two requests share an iteration only if both initiate with the same number of input tokens, or both increment at the
same token index. The oldest request that can run decides which group goes. Pipelined as ORCA is.
"""

from __future__ import annotations

from collections.abc import Hashable

from orca_master.scheduling.request import Request, RequestState

from orca_bench.baselines.aligned import Aligned


class PhaseAligned(Aligned):
    """A `Scheduling` by the three cases of C2."""

    def shape(self, request: Request) -> Hashable:
        """Phase, and number of input tokens or token index."""
        initiates = request.state is RequestState.INITIATION
        return (initiates, len(request.prompt) if initiates else request.num_tokens)

    def num_tokens(self, request: Request) -> int:
        """Return the whole prompt, or one."""
        return request.num_uncomputed

    def first(self, groups: list[list[Request]]) -> list[Request]:
        """First come, first served."""
        return groups[0]
