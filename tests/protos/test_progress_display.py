"""Progress as a bar on a terminal, and as lines elsewhere."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import pytest
from orca_protos.progress_display import LINE_SECONDS, ProgressLines, progress_display
from support.terminal import Terminal


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_terminal_gets_a_bar_that_is_removed():
    terminal = Terminal()
    lines: list[str] = []
    with progress_display("loading", "MiB", terminal, lines.append) as show:
        assert not terminal.getvalue(), "nothing is known yet"
        show(50, 200)
        drawn = terminal.getvalue()
    assert "loading" in drawn
    assert "/200" in drawn
    assert terminal.getvalue().endswith("\r")
    assert terminal.getvalue().split("\r")[-2].isspace()
    assert not lines


def test_the_bar_of_work_that_never_began_is_not_drawn():
    terminal = Terminal()
    with progress_display("loading", "MiB", terminal, print):
        pass
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("stream", ["closed", "no file"])
def test_a_stream_that_cannot_say_whether_it_is_a_terminal_gets_no_bar(stream):
    """A program may put an object with `write` alone in the place of stderr, or close it."""
    given: Any = io.StringIO() if stream == "closed" else object()
    if stream == "closed":
        given.close()
    with progress_display("loading", "MiB", given, print) as show:
        show(0, 200)


def test_short_work_writes_nothing():
    stream = io.StringIO()
    lines: list[str] = []
    with progress_display("loading", "MiB", stream, lines.append) as show:
        show(0, 200)
        show(200, 200)
    assert stream.getvalue() == ""
    assert not lines


@pytest.mark.parametrize("step", [0.5, LINE_SECONDS, 7.0])
def test_long_work_writes_a_line_now_and_then(step):
    clock = Clock()
    times: list[float] = []
    lines: list[str] = []

    def write(line: str) -> None:
        times.append(clock.now)
        lines.append(line)

    progress = ProgressLines("loading", "MiB", write, clock)
    for done in range(1, 101):
        clock.now += step
        progress.show(done, 100)
    assert times[0] >= 100.0 + step + LINE_SECONDS, "the first quantity came after a step"
    assert all(after - before >= LINE_SECONDS for before, after in pairwise(times))
    assert len(times) == 99 * step // max(step, LINE_SECONDS)
    assert lines == [f"loading: {round((moment - 100.0) / step)} of 100 MiB" for moment in times]


def test_work_that_stands_still_writes_nothing_more():
    clock = Clock()
    lines: list[str] = []
    progress = ProgressLines("loading", "MiB", lines.append, clock)
    for _ in range(10):
        clock.now += LINE_SECONDS
        progress.show(100, 100)
    assert lines == ["loading: 100 of 100 MiB"]
