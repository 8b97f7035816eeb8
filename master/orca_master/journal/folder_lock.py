"""`lock_folder`: one master at a time uses the folder of a journal or of batches, which an option names.

`when_free` waits for the master before.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from orca_master.errors import ConfigurationError
from orca_master.threads import started_threads

Opened = TypeVar("Opened")

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1


class FolderInUseError(ConfigurationError):
    """Another master uses the folder."""


def lock_folder(folder: Path, option: str = "--journal") -> int:
    """Lock the folder and return the descriptor that holds the lock, which the kernel releases with the process.

    Raises FolderInUseError if another master uses the folder, OSError if the lock file cannot be opened.
    """
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise FolderInUseError(f"{option} {folder}: another master uses this folder") from None
    return descriptor


async def when_free(open_folder: Callable[[Callable[[], bool]], Opened], seconds: float) -> Opened:
    """Return what `open_folder` returns; while it raises FolderInUseError, try again for `seconds`: the other master
    may be draining.

    It is called on a thread: what reads a large folder must not keep the event loop from giving signs of life. Its
    argument returns True after a cancellation, which waits for its end.
    """
    deadline = time.monotonic() + seconds
    waits, cancelled = False, threading.Event()
    thread = started_threads(1, "folder")
    while True:
        opening = asyncio.get_running_loop().run_in_executor(thread, open_folder, cancelled.is_set)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.wait({opening})
            opening.exception()  # read, or asyncio would log the error
            raise
        except FolderInUseError as error:
            if time.monotonic() >= deadline:
                raise
            if not waits:
                logger.info("%s, which may be draining: waiting for its end, at most %.0f s", error, seconds)
            waits = True
        await asyncio.sleep(POLL_SECONDS)
