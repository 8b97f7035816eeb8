"""`describe_exit`: codes and signals."""

from __future__ import annotations

import subprocess

import pytest
from orca_protos.exit_code import describe_exit


@pytest.mark.parametrize(
    ("command", "text"),
    [("exit 3", "exit code 3"), ("kill -9 $$", "killed by SIGKILL"), ("kill -40 $$", "killed by signal 40")],
)
def test_the_end_of_a_process_is_described(command, text):
    assert describe_exit(subprocess.run(["sh", "-c", command], check=False).returncode) == text
