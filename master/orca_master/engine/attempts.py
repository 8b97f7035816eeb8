"""`Attempts`: counts the failures in a row of a pipeline whose workers are restarted by the parent of `orca serve`."""

from __future__ import annotations

import time

MAX_CULPRITS = 5
"""Consecutive failed requests that reset the number of failures; beyond them the fault may be in the machine."""
MAX_ATTEMPTS = 5
"""Maximum attempts in a row to form a lost pipeline again."""
STABLE_SECONDS = 60.0
"""A pipeline that has served for so long has made progress, also without a result."""


class Attempts:
    """Losses and failed attempts since the last progress: a result, or STABLE_SECONDS in the state Serving."""

    def __init__(self) -> None:
        self._num_failures = 0
        self._num_culprits = 0
        """Requests that failed alone since the last result."""
        self._serves_since: float | None = None
        """In seconds of the monotonic clock; None while the pipeline does not serve."""

    @property
    def left(self) -> bool:
        """True if the pipeline may be formed again: a loss, then at most MAX_ATTEMPTS failed attempts."""
        return self._num_failures <= MAX_ATTEMPTS

    @property
    def first(self) -> bool:
        """True after the first failure since progress: the next attempt need not wait."""
        return self._num_failures == 1

    def note_serving(self) -> None:
        """Note that the pipeline serves."""
        self._serves_since = time.monotonic()

    def note_result(self) -> None:
        """Note that an iteration has returned."""
        self._num_failures = self._num_culprits = 0

    def note_culprit(self) -> None:
        """Note that the request that may have caused the failures has ended."""
        self._num_culprits += 1
        if self._num_culprits <= MAX_CULPRITS:
            self._num_failures = 0

    def note_failure(self) -> None:
        """Note that the pipeline was lost or was not formed."""
        if self._serves_since is not None and time.monotonic() - self._serves_since >= STABLE_SECONDS:
            self._num_failures = 0
        self._serves_since = None
        self._num_failures += 1
