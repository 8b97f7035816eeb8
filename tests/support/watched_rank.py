"""A rank that records its torch.distributed calls, and whose layers wait while a file `armed` exists.

The first argument is the folder of the files. A file `release` ends the wait, which is limited to a minute.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from orca_worker import rank
from orca_worker.recorded_layers import RecordedLayers

folder = Path(sys.argv.pop(1))
run = RecordedLayers.run
CALLS = (
    "isend", "irecv", "send", "recv", "broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter",
    "reduce_scatter", "all_to_all", "barrier", "batch_isend_irecv", "all_gather_into_tensor", "send_object_list",
    "recv_object_list", "broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list",
)  # fmt: skip


def record(name):
    original = getattr(dist, name)

    def call(*arguments, **options):
        tensors = [a for a in (*arguments, *options.values()) if isinstance(a, torch.Tensor)]
        with (folder / "calls.jsonl").open("a") as file:
            file.write(json.dumps([name, [[list(t.shape), str(t.dtype)] for t in tensors]]) + "\n")
        return original(*arguments, **options)

    return call


def blocked(self, batch, hidden):
    if (folder / "armed").exists():
        deadline = time.monotonic() + 60
        while not (folder / "release").exists():
            if time.monotonic() > deadline:
                raise TimeoutError("the test did not release the rank")
            time.sleep(0.01)
    return run(self, batch, hidden)


for call_name in CALLS:
    setattr(dist, call_name, record(call_name))
RecordedLayers.run = blocked
rank.run_as_process()
