"""A limit of threads that is reached: no thread can be started any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def no_threads() -> Iterator[None]:
    """Refuse new threads inside the block, as the interpreter does at a limit of processes or of memory."""
    with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        yield
