"""The progress of loading, from what the engine publishes to what a person sees."""

from __future__ import annotations

import asyncio
import io
import logging

import pytest
from orca_master.commands import load_progress as module
from orca_master.commands.load_progress import MEBIBYTE, load_progress
from orca_master.engine.snapshot import LoadedBytes
from orca_protos import progress_display
from support.terminal import Terminal


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(progress_display, "LINE_SECONDS", 0.0)


def watch(stream: io.StringIO, *readings: LoadedBytes) -> None:
    """Show readings one after the other, each at least once."""

    async def run() -> None:
        left = list(readings)
        seen = asyncio.Event()

        def reading() -> LoadedBytes:
            if len(left) > 1:
                return left.pop(0)
            seen.set()
            return left[0]

        async with load_progress(reading, stream), asyncio.timeout(60):
            await seen.wait()

    asyncio.run(run())


def test_lines_in_a_log(caplog):
    with caplog.at_level(logging.INFO):
        watch(
            io.StringIO(),
            LoadedBytes(),
            LoadedBytes(5 * MEBIBYTE, 80 * MEBIBYTE),
            LoadedBytes(80 * MEBIBYTE, 80 * MEBIBYTE),
        )
    assert [record.getMessage() for record in caplog.records] == [
        "loading weights: 5 of 80 MiB",
        "loading weights: 80 of 80 MiB",
    ]


def test_a_bar_on_a_terminal(caplog):
    terminal = Terminal()
    watch(terminal, LoadedBytes(5 * MEBIBYTE, 80 * MEBIBYTE))
    assert "loading weights" in terminal.getvalue()
    assert "/80" in terminal.getvalue()
    assert not caplog.records


def test_nothing_while_no_worker_reads(caplog):
    """Also for workers of an older version, which do not report how much there is to read."""
    terminal = Terminal()
    watch(terminal, LoadedBytes(), LoadedBytes())
    assert terminal.getvalue() == ""
    assert not caplog.records


def test_an_error_of_the_start_ends_the_bar():
    terminal = Terminal()

    async def run() -> None:
        async with load_progress(lambda: LoadedBytes(1, MEBIBYTE), terminal):
            await asyncio.sleep(0.05)
            raise ValueError("the start")

    with pytest.raises(ValueError, match="the start"):
        asyncio.run(run())
    assert "\r" in terminal.getvalue()
