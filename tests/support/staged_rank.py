"""A rank on a CPU whose activations take the way of those of a GPU over gloo: copies, and a thread that sends them.

Each send adds a line with its receiver to the log file of the first argument.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from orca_worker import data_plane, rank
from orca_worker.data_plane import DataPlane
from orca_worker.device_copies import HostCopies
from orca_worker.staging import Staging

path = Path(sys.argv.pop(1))
initialise = DataPlane.__init__


class Copies(HostCopies):
    """Copies on the host, made by the thread that waits for them."""

    def start(self, *tensors):
        return lambda: [tensor.clone() for tensor in tensors]


def start_send(hidden, receiver):
    with path.open("a") as file:
        file.write(f"{threading.current_thread().name} {receiver}\n")
    return data_plane._start_send(hidden, receiver)


def staged(self, *arguments):
    initialise(self, *arguments)
    self._staging = Staging(
        self._device, Copies(self._device), start_send, self._lost, self._timeout, self._max_in_flight
    )


DataPlane.__init__ = staged
rank.run_as_process()
