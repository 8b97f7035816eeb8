"""A child process ends with its parent, also if it is stopped."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from orca_protos.parent_death import bound_command

CHILD = "from orca_protos.parent_death import die_with_parent; die_with_parent(); print('bound', flush=True); input()"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "bound\\n"
print(child.pid, flush=True)
input()
"""


def test_a_bound_module_runs_like_a_module_and_gets_signals_that_its_parent_blocks(tmp_path):
    (tmp_path / "child.py").write_text(
        "import signal, sys\n"
        "if __name__ == '__main__':\n"
        "    print(sys.argv[1:], signal.pthread_sigmask(signal.SIG_BLOCK, ()))\n"
        "    sys.exit(7)\n"
    )
    # This process may itself find orca_protos through PYTHONPATH (tests/registry/test_lower_bounds.py).
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        result = subprocess.run(
            [*bound_command("child"), "a", "b"], env={**os.environ, "PYTHONPATH": path},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert (result.stdout, result.returncode) == ("['a', 'b'] set()\n", 7)


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
