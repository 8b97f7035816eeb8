"""`FullCollections`: bounds the share of time that a serving process spends on full garbage collections.

A full collection looks at all objects that `gc.freeze` has not excluded, 380 of each waiting request. It starts when a
quarter as many objects have survived younger collections as the last full one looked at. Under an overload that
was every two seconds, for 0.7 s each: a third of the time, in which no iteration is sent and no request answered.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

SHARE = 0.02
"""Largest share of the time for full collections: after one that took t seconds, the next starts t / SHARE later."""
LONGEST_SECONDS = 60.0
"""Longest wait for the next full collection, whatever the last one took: garbage must not pile up."""
NEVER = 2**31 - 1


class FullCollections:
    """A callback of `gc.callbacks` that suspends automatic full collections after each one. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._thresholds = gc.get_threshold()
        self._begun = 0.0
        self._next = 0.0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        """Note the begin or the end of a collection (`gc.callbacks` in Python's reference)."""
        is_full = info["generation"] == len(self._thresholds) - 1
        if phase == "start":
            if is_full:
                self._begun = self._clock()
        elif is_full:
            now = self._clock()
            self._next = now + min((now - self._begun) / SHARE, LONGEST_SECONDS)
            gc.set_threshold(*self._thresholds[:-1], NEVER)
        elif self._clock() >= self._next:
            gc.set_threshold(*self._thresholds)


def freeze_and_bound() -> None:
    """Exclude the objects so far, which are permanent, from collections; bound the full ones from now on."""
    gc.freeze()
    gc.callbacks.append(FullCollections())
