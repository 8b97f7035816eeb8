"""A rank whose layers take at least the SECONDS of the first argument, on any machine."""

from __future__ import annotations

import sys
import time

from orca_worker import rank
from orca_worker.recorded_layers import RecordedLayers

seconds = float(sys.argv.pop(1))
run = RecordedLayers.run


def slow(self, batch, hidden):
    time.sleep(seconds)
    return run(self, batch, hidden)


RecordedLayers.run = slow
rank.run_as_process()
