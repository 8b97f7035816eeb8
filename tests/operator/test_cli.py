"""Mistakes on the command line of `orca operator`: one line and exit code 2."""

from __future__ import annotations

import pytest
from orca_operator.cli import main


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--certificate-propagation", "0"], "'0' is not a whole number from 1 to 86400"),
        (["--certificate-propagation", "86401"], "'86401' is not a whole number from 1 to 86400"),
        (["--certificate-propagation", "9" * 5000], "is not a whole number from 1 to 86400"),
        (["--certificate-propagation", "a minute"], "'a minute' is not a whole number"),
        (["--liveness-port", "65536"], "'65536' is not a port"),
        (["--all-namespaces", "--namespace", "a"], "--all-namespaces and --namespace exclude each other"),
    ],
)
def test_mistakes_on_the_command_line(options, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("orca operator: error: ")
    assert words in line
