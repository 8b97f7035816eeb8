"""Progress of long work for a person: a bar on a terminal, else a line every few seconds.

Quantities are whole numbers of one unit, such as MiB.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

LINE_SECONDS = 5.0

Show = Callable[[int, int], None]
"""Takes how much is done, and how much there is to do."""


@contextlib.contextmanager
def progress_display(title: str, unit: str, stream: TextIO, write_line: Callable[[str], None]) -> Iterator[Show]:
    """Yield what shows progress: a bar on `stream` if that is a terminal, removed at the end, else `write_line`."""
    if not _is_terminal(stream):
        yield ProgressLines(title, unit, write_line).show
        return
    bar = ProgressBar(title, unit, stream)
    try:
        yield bar.show
    finally:
        bar.close()


def _is_terminal(stream: TextIO) -> bool:
    """Return False also for stderr that a process lacks (None) or has closed, and for an object in its place."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


class ProgressBar:
    """A bar, which appears with the first quantity."""

    def __init__(self, title: str, unit: str, stream: TextIO) -> None:
        self._title = title
        self._unit = unit
        self._stream = stream
        self._bar: Any = None

    def show(self, done: int, total: int) -> None:
        """Draw the bar, some times per second at most."""
        if self._bar is None:
            from tqdm import tqdm  # takes 0.2 s, which processes without a terminal save

            self._bar = tqdm(
                total=total,
                desc=self._title,
                unit=f" {self._unit}",
                file=self._stream,
                leave=False,
                dynamic_ncols=True,
            )
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


class ProgressLines:
    """Lines, LINE_SECONDS apart at least, the first one as long after the first quantity: none for shorter work."""

    def __init__(
        self, title: str, unit: str, write_line: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._unit = unit
        self._write_line = write_line
        self._clock = clock
        self._due: float | None = None
        self._shown = 0

    def show(self, done: int, total: int) -> None:
        """Write a line if it is time for one and there is progress."""
        now = self._clock()
        if self._due is None:
            self._due = now + LINE_SECONDS
        if now < self._due or done == self._shown:
            return
        self._due, self._shown = now + LINE_SECONDS, done
        self._write_line(f"{self._title}: {done} of {total} {self._unit}")
