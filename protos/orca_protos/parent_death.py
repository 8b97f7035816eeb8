"""Child processes that end with their parent, also if they are stopped (Linux).

`python -m orca_protos.parent_death MODULE ARGUMENTS` runs a module like `python -m MODULE ARGUMENTS`, in a process that
is bound to its parent before it imports the module. Nothing runs between fork and exec, so that a process with several
threads can start it.
"""

from __future__ import annotations

import ctypes
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Make the kernel kill this process when the thread that has started it ends (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def bound_command(module: str) -> tuple[str, ...]:
    """Return the command that runs `module` in a process that ends with its parent and blocks no signals.

    A parent that has ended before the interpreter begins is not noticed: the child must have a pipe or a socket, too.
    """
    # -P: the current folder is not in the module path, so Python files of a model's folder are never imported.
    return (sys.executable, "-P", "-m", "orca_protos.parent_death", module)


if __name__ == "__main__":
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent may block signals
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
