"""A rank whose results are complete only when the next iteration has started, as on a GPU.

The first argument is a log file; each start and each reply adds a line with the iteration's number. A result is also
complete after a tenth of a second, because the next iteration may need it.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from orca_worker import rank
from orca_worker.stage import Stage

path = Path(sys.argv.pop(1))
execute = Stage.execute
changed = threading.Condition()
started: list[int] = []


def note(what):
    with path.open("a") as file:
        file.write(what + "\n")


def noted(self, iteration):
    with changed:
        note(f"started {iteration.sequence}")
        started.append(iteration.sequence)
        changed.notify_all()
    reply = execute(self, iteration)

    def read():
        with changed:
            changed.wait_for(lambda: started[-1] > iteration.sequence, timeout=0.1)
            note(f"answered {iteration.sequence}")
        return reply()

    return read


Stage.execute = noted
Stage.runs_ahead = True
rank.run_as_process()
