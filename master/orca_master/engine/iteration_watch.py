"""`IterationWatch`: detects an iteration that does not return, within a bound that follows the measured times.

Without a given bound, an iteration may take FACTOR times the moving average of iterations of its kind, at least
FLOOR_SECONDS; the first of a kind, or of a formation, has FIRST_SECONDS beyond the time that warm-ups would take. No
bound exceeds LONGEST_SECONDS (config.py), for which the ranks wait for each other. An iteration that waits behind
another command of the ranks has the time of that command in addition (`allowing`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from orca_master.engine.config import LONGEST_SECONDS
from orca_master.scheduling.batch import Batch

FLOOR_SECONDS = 10.0
FACTOR = 20.0
FIRST_SECONDS = 60.0
WARMUP_TOKENS = 64
"""On the CPU a warm-up has so many tokens (CPU_WARMUP_TOKENS in orca_worker/stage.py); on a GPU it has more."""
WEIGHT = 0.2
"""Weight of the newest iteration in a moving average."""
DOUBT = 4.0
"""Factor of a kind's bound after each stall, of which each result of the kind takes WEIGHT away: a bound that was too
short must not end every formation, also if quicker iterations of the kind come before."""
SUSPENDED_SECONDS = 1.0
"""A timer that is so late shows that this process was suspended or starved; results may wait to be read."""


def kind_of(batch: Batch) -> tuple[int, int]:
    """Return the magnitude of an iteration: bits of its number of tokens, and of the pairs in its attention."""
    num_tokens = sum(entry.num_inputs for entry in batch.requests)
    pairs = sum(entry.num_inputs * (entry.context_length + entry.num_inputs) for entry in batch.requests)
    return num_tokens.bit_length(), pairs.bit_length()


class IterationWatch:
    """Watches one iteration at a time, from `begin` to `end` or `stop`, on the running event loop.

    `stall_timeout`: a fixed bound in seconds, None for the automatic one. `on_stall` gets the exceeded bound.
    """

    def __init__(self, stall_timeout: float | None, on_stall: Callable[[float], None]) -> None:
        self._bound = FIRST_SECONDS if stall_timeout is None else stall_timeout
        self._allowed = 0.0
        """Seconds beyond the bound."""
        self._allows = False
        """The present time is inside `allowing`."""
        self._overlaps = False
        """`allowing` was entered before the end of the iteration that is watched."""
        self._warmup_seconds = 0.0
        self._is_first = True
        """No iteration of the present formation has returned."""
        self._fixed = stall_timeout is not None
        self._on_stall = on_stall
        self._averages: dict[tuple[int, int], float] = {}
        self._doubts: dict[tuple[int, int], float] = {}
        self._kind = (0, 0)
        self._begun = self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """Bound of the latest iteration, with what is allowed beyond."""
        return self._bound + self._allowed

    @property
    def watches(self) -> bool:
        """True between `begin` and `end` or `stop`."""
        return self._timer is not None

    def note_formation(self, warmup_seconds: float) -> None:
        """Note that a pipeline was formed; `warmup_seconds`: sum of the warm-ups of its partitions.

        Workers that were formed before repeat no warm-up, so the longest time counts.
        """
        self._warmup_seconds = max(self._warmup_seconds, warmup_seconds)
        self._is_first = True

    def begin(self, batch: Batch) -> None:
        """Watch the iteration of `batch`, the oldest in flight."""
        self.stop()
        self._kind = kind_of(batch)  # also with a fixed bound, which may become automatic
        if not self._fixed:
            self._bound = self._automatic()
        self._overlaps = self._allows
        self._start()

    def end(self) -> None:
        """Note that the iteration has returned."""
        if not self._overlaps:
            taken = asyncio.get_running_loop().time() - self._begun
            average = self._averages.get(self._kind, taken)
            self._averages[self._kind] = average + WEIGHT * (taken - average)
        self._doubts[self._kind] = max(1.0, self._doubts.get(self._kind, 1.0) * (1 - WEIGHT))
        self._is_first = False
        self.stop()

    def stop(self) -> None:
        """Watch no iteration."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._allows:
            self._allowed = 0.0

    @contextlib.contextmanager
    def allowing(self, seconds: float) -> Iterator[None]:
        """Add `seconds` to the bounds while the ranks also have another command, one at a time.

        Afterwards the bound of the iteration that is watched counts from now on. Its time is not averaged.
        """
        self._allows = self._overlaps = True
        self._allowed = seconds
        self._reset_timer()
        try:
            yield
        finally:
            self._allows = False
            self._allowed = 0.0 if self._timer is None else asyncio.get_running_loop().time() - self._begun
            self._reset_timer()

    def set_timeout(self, stall_timeout: float | None) -> None:
        """Change the bound, None for the automatic one, also of the iteration that is watched.

        An iteration that has already taken longer is reported at once.
        """
        self._fixed = stall_timeout is not None
        self._bound = self._automatic() if stall_timeout is None else stall_timeout
        self._reset_timer()

    def _automatic(self) -> float:
        average = self._averages.get(self._kind)
        bound = 0.0 if average is None else max(FLOOR_SECONDS, FACTOR * average)
        if average is None or self._is_first:  # the first also connects the partitions, over NCCL
            first = FIRST_SECONDS + self._warmup_seconds * max(1.0, (1 << self._kind[0]) / WARMUP_TOKENS)
            bound = max(bound, first)
        return min(LONGEST_SECONDS, self._doubts.get(self._kind, 1.0) * bound)

    def _start(self) -> None:
        self._begun = asyncio.get_running_loop().time()
        self._set_timer(self._begun + self.seconds)

    def _reset_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._set_timer(max(self._begun + self.seconds, asyncio.get_running_loop().time()))

    def _set_timer(self, due: float) -> None:
        self._due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        if asyncio.get_running_loop().time() - self._due > SUSPENDED_SECONDS:
            self._start()
            return
        self._timer = None
        if self._bound < LONGEST_SECONDS:
            self._doubts[self._kind] = self._doubts.get(self._kind, 1.0) * DOUBT
        self._on_stall(self.seconds)
