"""`lock_folder`: one master at a time uses the folder of a journal or of batches, which an option names."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from orca_master.errors import ConfigurationError

LOCK_SECONDS = 5.0
"""Maximum wait for the end of an earlier master that uses the folder."""


def lock_folder(folder: Path, option: str = "--journal") -> int:
    """Lock the folder and return the descriptor that holds the lock, which the kernel releases with the process.

    Raises ConfigurationError if another master uses the folder, OSError if the lock file cannot be opened.
    """
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise ConfigurationError(f"{option} {folder}: another master uses this folder") from None
            time.sleep(0.1)
        else:
            return descriptor
