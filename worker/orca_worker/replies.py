"""`Replies`: sends the replies of iterations that run on a GPU, in order, from a thread of their own.

The main thread launches the next iterations meanwhile: if it waited for a result, the iteration after the next would be
built while the device idles. On a CPU a result is complete when the main thread has it, so this module is not used.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from orca_protos import engine_pb2 as pb

Reply = Callable[[], pb.RankReply]
"""Waits for the device and returns the reply of an iteration."""


class Replies:
    """Replies in the order of `put`. `send` and `fail` (with the error of a reply or of `send`) run on the thread."""

    def __init__(self, send: Callable[[pb.RankReply], None], fail: Callable[[Exception], None]) -> None:
        self._send = send
        self._fail = fail
        self._waiting: queue.SimpleQueue[tuple[int, Reply]] = queue.SimpleQueue()
        self.generation = 0
        """Number of calls of `discard`. Read it before an iteration is executed, which may take until after a call."""
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, reply: Reply, generation: int) -> None:
        """Send `reply` when the device has computed it, after all earlier ones, unless `generation` is over.

        Never blocks.
        """
        self._waiting.put((generation, reply))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="replies", daemon=True)
            self._thread.start()

    def discard(self) -> None:
        """Drop all replies that have not been sent, from any thread: none of them is sent after this call."""
        with self._sending:
            self.generation += 1

    def _run(self) -> None:
        while True:
            generation, wait = self._waiting.get()
            if generation != self.generation:
                continue
            try:
                reply = wait()
                with self._sending:
                    if generation == self.generation:
                        self._send(reply)
            except Exception as error:
                if generation == self.generation:  # the device fails what an abort has interrupted
                    self._fail(error)
            del wait  # its tensors, while this thread waits for the next reply
