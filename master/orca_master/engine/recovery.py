"""`Recovery`: how long a pipeline is still expected to be missing, and whether new requests wait for it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recovery:
    """A recovery that began at `since` (CLOCK_MONOTONIC, which all processes of a machine share). Times in seconds.

    `usual`: moving average of the engine's recoveries, before the first the time of its start. `longest_wait`: longest
    expected wait for which new requests are accepted; 0: they are refused.
    """

    since: float = 0.0
    usual: float = 0.0
    longest_wait: float = 0.0

    def expected_wait(self, now: float) -> float:
        """Return the rest of the usual time; after it, as much as the recovery has taken beyond it."""
        return abs(self.usual - max(0.0, now - self.since))

    def accepts(self, now: float) -> bool:
        """Return True if new requests may wait."""
        return 0.0 < self.longest_wait >= self.expected_wait(now)

    def retry_after(self, now: float) -> int:
        """Return the whole seconds, at least 1, after which a refused request may be tried again."""
        return max(1, math.ceil(self.expected_wait(now)))
