"""A rank whose layers take at least the SECONDS of the first argument, on any machine."""

from __future__ import annotations

import sys
import time

from orca_worker import rank
from orca_worker.stage import Stage

seconds = float(sys.argv.pop(1))
run_layers = Stage.run_layers


def slow(self, batch, hidden):
    time.sleep(seconds)
    return run_layers(self, batch, hidden)


Stage.run_layers = slow
rank.run_as_process()
