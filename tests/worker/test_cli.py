"""The command line of `orca worker`: a mistake is one line and exit code 2."""

from __future__ import annotations

import pytest
from orca_worker.cli import main


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--drain-timeout=-1", "argument --drain-timeout: '-1' is not a whole number of at least 0"),
        ("--heartbeat=-1", "argument --heartbeat: '-1' is not a whole number of at least 0"),
        ("--heartbeat=4321", "--heartbeat 4321: an open file descriptor is expected"),
        ("--heartbeat=99999999999", "--heartbeat 99999999999: an open file descriptor is expected"),
    ],
)
def test_a_number_that_cannot_be(tmp_path, option, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--listen", f"unix:{tmp_path}/socket", option])
    assert capsys.readouterr().err == f"orca worker: error: {words}\n"


@pytest.mark.parametrize("address", ["unix:", "unix:/nowhere/socket"])
def test_a_socket_without_a_folder_is_refused(address, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--listen", address])
    words = f"--listen '{address}': unix: and a path in a folder that exists are expected"
    assert capsys.readouterr().err == f"orca worker: error: {words}\n"
