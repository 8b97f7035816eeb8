"""`orca bench` without a benchmark: what it lists, and its exit codes."""

from __future__ import annotations

import pytest
from orca_bench.cli import COMMANDS, main


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_the_benchmarks(option, capsys):
    assert main([option]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert all(f"\n  {name} " in printed.out for name in COMMANDS)


@pytest.mark.parametrize("argv", [[], ["serv"]])
def test_another_word_is_one_line(argv, capsys):
    assert main(argv) == 2
    assert capsys.readouterr().err == "orca bench: error: a benchmark is expected: serve, engine\n"
