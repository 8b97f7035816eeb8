"""A rank that prepares its first epoch only when the file `release` exists in the folder of the first argument.

Before it waits, for at most a minute, it creates a file `preparing`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from orca_worker import rank
from orca_worker.stage import Stage

folder = Path(sys.argv.pop(1))
prepare = Stage.prepare


def late(self, epoch):
    if not (folder / "preparing").exists():
        (folder / "preparing").touch()
        deadline = time.monotonic() + 60
        while not (folder / "release").exists():
            if time.monotonic() > deadline:
                raise TimeoutError("the test did not release the rank")
            time.sleep(0.01)
    return prepare(self, epoch)


Stage.prepare = late
rank.run_as_process()
