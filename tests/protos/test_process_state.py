"""The state of another process."""

from __future__ import annotations

import os
import signal
import subprocess

from orca_protos.process_state import is_stopped


def test_a_stopped_process_is_recognised():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        assert not is_stopped(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert is_stopped(process.pid)
        process.kill()
    assert not is_stopped(process.pid), "it has ended"
