"""`Syncer`: a thread that calls fsync(2) for the journal's files in batches, and deletes files that were written again.

What was written survives the death of the process at once, and that of the machine SYNC_SECONDS and one fsync later.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from orca_master.threads import start_thread

SYNC_SECONDS = 0.1
JOIN_SECONDS = 5.0


class Syncer:
    """Syncs the files in `folder` until `close`; calls `fail` on its thread with the reason of an fsync that failed."""

    def __init__(self, folder: Path, fail: Callable[[str], None]) -> None:
        self._folder = folder
        self._fail = fail
        self._newest = -1
        self._complete: list[int] = []
        """Descriptors of complete files, which the thread closes."""
        self._replaced: list[Path] = []
        """Files to delete, in this order."""
        self._lock = threading.Lock()
        self._dirty, self._new_files, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._sync, name="journal", daemon=True)
        start_thread(self._thread)

    def begin(self, descriptor: int) -> None:
        """Take over the descriptor of a new file, which is the newest now; the file before it is complete."""
        with self._lock:
            if self._newest >= 0:
                self._complete.append(self._newest)
            self._newest = descriptor
        self._new_files.set()
        self._dirty.set()

    def note_written(self) -> None:
        """Note that the newest file has more bytes."""
        self._dirty.set()

    def delete_after_sync(self, path: Path) -> None:
        """Delete a file when all that has been written so far survives the death of the machine."""
        with self._lock:
            self._replaced.append(path)
        self._dirty.set()

    @property
    def is_deleting(self) -> bool:
        """True while files wait for their deletion: those that are deleted later must wait for them."""
        return bool(self._replaced)

    def delete_now(self) -> None:
        """Delete the files that wait for their deletion."""
        with self._lock:
            replaced, self._replaced = self._replaced, []
        _unlink(replaced)

    def close(self) -> None:
        """Sync for the last time and close the files; wait at most JOIN_SECONDS for a disk that hangs."""
        self._closing.set()
        self._dirty.set()
        self._thread.join(JOIN_SECONDS)

    def _sync(self) -> None:
        closing = False
        while not closing:
            self._dirty.wait()
            self._dirty.clear()
            closing = self._closing.is_set()
            with self._lock:
                complete, self._complete = self._complete, []
                replaced, newest = list(self._replaced), self._newest
            try:
                for descriptor in (*complete, newest):
                    if descriptor >= 0:
                        os.fsync(descriptor)
                if self._new_files.is_set():
                    self._new_files.clear()
                    self._sync_folder()
                _unlink(replaced)
                with self._lock:
                    self._replaced = [path for path in self._replaced if path not in replaced]
            except OSError as error:
                self._fail(str(error.strerror))
            for descriptor in complete:
                os.close(descriptor)
            self._closing.wait(SYNC_SECONDS)
        if self._newest >= 0:
            os.close(self._newest)

    def _sync_folder(self) -> None:
        """Make the names of new files survive the death of the machine."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _unlink(paths: Sequence[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # a disk that has become read-only
            path.unlink()
