"""Imported by every interpreter whose PYTHONPATH has this folder: in a rank, SIGUSR2 makes the next iteration fail."""

from __future__ import annotations

import signal
import sys
from typing import Any


def fail_next_iteration(*_: Any) -> None:
    """Replace `Stage.execute` until it is called."""
    stage = sys.modules["orca_worker.stage"].Stage
    execute = stage.execute

    def fail(self: Any, iteration: Any) -> Any:
        stage.execute = execute
        raise RuntimeError("a kernel failed, says the chaos campaign")

    stage.execute = fail


if "orca_worker.rank" in sys.orig_argv:
    signal.signal(signal.SIGUSR2, fail_next_iteration)
