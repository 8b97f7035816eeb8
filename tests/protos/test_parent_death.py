"""A child process ends with its parent, also if it is stopped."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

CHILD = "from orca_protos.parent_death import die_with_parent; die_with_parent(); print('bound', flush=True); input()"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "bound\\n"
print(child.pid, flush=True)
input()
"""


def test_a_stopped_child_ends_with_its_parent():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        handle = os.pidfd_open(child)
        os.kill(child, signal.SIGSTOP)
        parent.kill()
    ready, _, _ = select.select([handle], [], [], 60)  # readable when the process has ended
    assert ready
    os.close(handle)
