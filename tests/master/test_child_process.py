"""Forked children: their exit codes, their errors, and that none outlives its use."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
from orca_master.commands.child_process import Fork


def test_a_fork_passes_on_its_errors_and_its_exit_code():
    child = Fork(lambda: print("two\nlines", file=sys.stderr) or (sys.stdout.write("lost") and 3))
    assert child.output(time.monotonic() + 60) == "two\nlines\n"
    assert child.wait() == 3
    child.close()


def test_a_fork_that_raises_has_exit_code_1_and_a_traceback():
    child = Fork(lambda: {}["ours"])
    assert child.output(time.monotonic() + 60).endswith("KeyError: 'ours'\n")
    assert child.wait() == 1
    child.close()


def test_a_fork_that_overruns_its_time_is_killed():
    child = Fork(lambda: time.sleep(60) or 0)
    with pytest.raises(TimeoutError):
        child.output(time.monotonic() + 0.05)
    child.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(child._pid, os.WNOHANG)


def test_the_signal_that_ends_a_fork_is_its_exit_code():
    child = Fork(lambda: os.kill(os.getpid(), signal.SIGXCPU) or 0)
    assert child.output(time.monotonic() + 60) == ""
    assert child.wait() == -signal.SIGXCPU
    child.close()
