"""`LoopThread`: an event loop on a thread of its own, for callers on other threads of the same process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
END_SECONDS = 5.0
"""Longest wait for the end of the thread."""


class LoopThread:
    """`reason`: message of the RuntimeError for callers after `refuse`."""

    def __init__(self, name: str, reason: str) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._reason = reason
        self._process = os.getpid()
        self._refuses = False
        self._submitting = threading.RLock()  # a signal's handler may close what it has interrupted
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; raise RuntimeError as `check`, or if `close` cancels it."""
        try:
            self.check()  # before the lock, which a fork may have copied while it was held
            with self._submitting:  # a loop that has ended would never run it
                self.check()
                running = self.submit(work)
        except RuntimeError:
            work.close()
            self.check()  # if a signal's handler has closed the loop meanwhile
            raise
        try:
            return running.result()
        except concurrent.futures.CancelledError:
            raise RuntimeError(self._reason) from None
        except BaseException:  # also of this thread alone, such as KeyboardInterrupt
            running.cancel()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start `work`, also after `refuse`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @property
    def is_elsewhere(self) -> bool:
        """True in a process that was forked since: a fork has no thread but that of its caller."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raise RuntimeError after `refuse`, and where `is_elsewhere`."""
        if self.is_elsewhere:
            raise RuntimeError(f"process {self._process} created it, and has forked this one: create another one here")
        if self._refuses:
            raise RuntimeError(self._reason)

    def refuse(self) -> None:
        """Let `run` accept no more work."""
        with self._submitting:
            self._refuses = True

    def close(self) -> None:
        """Cancel the work that is left, and end the thread. Once, after `refuse`."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_SECONDS)

    def _serve(self) -> None:
        with self._runner:  # whose end cancels what still runs, and closes the loop
            self._loop.run_forever()
