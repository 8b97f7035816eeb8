"""The progress of a call of `LLM`, on a terminal, in a log, and through a bar of the caller."""

from __future__ import annotations

import functools
import io
import logging
import sys
from typing import Any

import pytest
from orca_master.llm_progress import prompts_display
from orca_protos import progress_display
from support.terminal import Terminal
from tqdm import tqdm


def run(use_tqdm: Any, total: int) -> None:
    with prompts_display(use_tqdm, total) as note:
        for _ in range(total):
            note()


def test_a_bar_on_a_terminal_is_removed_at_the_end(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    run(True, 3)
    assert "Processed prompts" in terminal.getvalue()
    assert "0/3" in terminal.getvalue()
    assert terminal.getvalue().split("\r")[-2].isspace()


def test_lines_in_a_log_without_a_terminal(monkeypatch, caplog):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(progress_display, "LINE_SECONDS", 0.0)
    with caplog.at_level(logging.INFO):
        run(True, 2)
    assert [record.getMessage() for record in caplog.records] == [
        "Processed prompts: 1 of 2 prompts",
        "Processed prompts: 2 of 2 prompts",
    ]


@pytest.mark.parametrize(("use_tqdm", "total"), [(False, 3), (True, 0)])
def test_nothing_without_progress_or_prompts(monkeypatch, use_tqdm, total):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    run(use_tqdm, total)
    assert terminal.getvalue() == ""


def test_a_process_without_stderr(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    run(True, 3)


def test_a_bar_of_the_caller_keeps_its_options_and_is_closed():
    stream, bars = io.StringIO(), list[Any]()

    def make(**options: Any) -> Any:
        bars.append(functools.partial(tqdm, file=stream, leave=True)(**options))
        return bars[-1]

    run(make, 2)
    assert "Processed prompts: 100%" in stream.getvalue()
    assert (bars[0].n, bars[0].total, bars[0].disable) == (2, 2, True)  # tqdm's `close` disables a bar


def test_a_bar_of_the_caller_is_closed_after_an_error():
    stream = io.StringIO()
    bar = tqdm(total=2, file=stream)
    with pytest.raises(ValueError, match="the work"), prompts_display(lambda **_: bar, 2):
        raise ValueError("the work")
    assert bar.disable
