"""Phase-aligned batching: batching without selective batching, as limited by challenge C2 (paper, section 3.1).

Two requests share an iteration only if both are in the initiation phase with the same number of input tokens, or both
in the increment phase at the same token index. The group of the oldest runnable request goes first. Pipelined as ORCA.
"""

from __future__ import annotations

from collections.abc import Hashable

from orca_master.scheduling.request import Request, RequestState

from orca_bench.baselines.aligned import Aligned


class PhaseAligned(Aligned):
    """A `Scheduling` by the three cases of C2."""

    def shape(self, request: Request) -> Hashable:
        """Return the phase, and the number of input tokens or the token index."""
        initiates = request.state is RequestState.INITIATION
        return (initiates, len(request.prompt) if initiates else request.num_tokens)

    def num_tokens(self, request: Request) -> int:
        """Return the length of the prompt, or 1 in the increment phase."""
        return request.num_uncomputed

    def first(self, groups: list[list[Request]]) -> list[Request]:
        """Return the group with the oldest request."""
        return groups[0]
