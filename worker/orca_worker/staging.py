"""`Staging`: activations between a GPU and gloo, which reads and writes memory of the host only. Not yet run on a GPU.

A send copies the activations into pinned memory on a stream of its own; a thread waits for the copies, in order, and
passes them to gloo, because the main thread must not wait for the device. A receive goes into pinned memory; when it is
complete, the main thread starts its copy to the device.
"""

from __future__ import annotations

import contextlib
import datetime
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

import torch
import torch.distributed as dist

from orca_worker.device_copies import HostCopies
from orca_worker.errors import NeighbourError

OVER = "the epoch is over"
LEAST_SECONDS = 0.001
"""Of a wait that follows another one within the same timeout."""
StartSend = Callable[[torch.Tensor, int], dist.Work]
"""Starts sending a tensor on the host to a rank. Raises RuntimeError."""
Lost = Callable[[int, RuntimeError], NeighbourError]
"""Converts the error of a transfer with a rank."""


class Staging:
    """Transfers of one process group, whose ranks compute on `device`.

    `copies` copies to the host on a stream of its own. `timeout`: of a wait for another rank. `max_in_flight`: sends
    that have not ended, at least 1, each with its pinned memory, which torch reuses after its last copy.
    """

    def __init__(
        self,
        device: torch.device,
        copies: HostCopies,
        start_send: StartSend,
        lost: Lost,
        timeout: datetime.timedelta,
        max_in_flight: int,
    ) -> None:
        self._device = device
        self._copies = copies
        self._start_send = start_send
        self._lost = lost
        self._timeout = timeout
        self._max_in_flight = max_in_flight
        self._sends: deque[_Send] = deque()
        self._copied: queue.SimpleQueue[_Send | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        self._left = False
        self._thread: threading.Thread | None = None

    def send(self, hidden: torch.Tensor, receiver: int) -> None:
        """Start sending `hidden` to a rank, after all earlier sends; call on the main thread.

        With `max_in_flight` sends under way waits for the first, as long as for another rank. An iteration in flight
        has one send, so that the first has ended when the master sends one more iteration. Raises NeighbourError if
        this or an earlier send has lost its receiver, RuntimeError if the device has failed.
        """
        if self._failure is not None:
            raise self._failure
        if self._left:
            raise self._lost(receiver, RuntimeError(OVER))
        while len(self._sends) >= self._max_in_flight:
            self._finish(self._sends.popleft())
        sent = _Send(self._copies.start(hidden), receiver)
        self._sends.append(sent)
        self._copied.put(sent)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sends", daemon=True)
            self._thread.start()

    def buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return pinned memory into which gloo receives."""
        return torch.empty(shape, dtype=dtype, pin_memory=self._device.type == "cuda")

    def to_device(self, received: torch.Tensor) -> torch.Tensor:
        """Start to copy received activations to the device, before all later work of the present stream."""
        return received.to(self._device, non_blocking=True)

    def leave(self) -> None:
        """Start no more sends, and end the main thread's wait for a copy; from any thread. Never blocks.

        The wait for a send that has started ends with the sockets of its receiver.
        """
        with self._changed:
            self._left = True
            self._changed.notify_all()
        self._copied.put(None)

    def close(self) -> None:
        """Leave, and drop all sends, so that nothing refers to the group; call on the main thread."""
        self.leave()
        self._sends.clear()
        self._failure = None
        with contextlib.suppress(queue.Empty):
            while True:
                self._copied.get_nowait()
        self._copied.put(None)

    def _finish(self, sent: _Send) -> None:
        begin, seconds = time.monotonic(), self._timeout.total_seconds()
        with self._changed:
            self._changed.wait_for(lambda: self._left or sent.work or self._failure, seconds)
            work, failure = sent.work, self._failure
        if work is None:
            reason = OVER if self._left else f"nothing was sent within {self._timeout}"
            raise failure or self._lost(sent.receiver, RuntimeError(reason))
        try:
            work.wait(datetime.timedelta(seconds=max(LEAST_SECONDS, seconds - (time.monotonic() - begin))))
        except RuntimeError as error:
            raise self._lost(sent.receiver, error) from error

    def _run(self) -> None:
        while (sent := self._copied.get()) is not None:
            try:
                self._start(sent, *sent.copied())
            except Exception as error:  # NeighbourError, or an error of the device
                error.__cause__ = error.__context__ = None  # their frames, and its own, refer to the group
                self._fail(error.with_traceback(None))
                return
            del sent  # its memory, while this thread waits for the next send

    def _start(self, sent: _Send, on_host: torch.Tensor) -> None:
        """Start a send, unless the group has been left; raise NeighbourError if its receiver is lost."""
        with self._changed:
            if self._left:
                return
            try:
                sent.on_host = on_host  # until the transfer has ended
                sent.work = self._start_send(on_host, sent.receiver)
            except RuntimeError as error:
                raise self._lost(sent.receiver, error) from None
            self._changed.notify_all()

    def _fail(self, failure: Exception) -> None:
        """Let the main thread raise `failure`; nothing more is sent."""
        with self._changed:
            self._failure = failure
            self._changed.notify_all()


class _Send:
    """One send: its copy to the host, and gloo's transfer of it from `work` on."""

    def __init__(self, copied: Callable[[], list[torch.Tensor]], receiver: int) -> None:
        self.copied = copied
        self.receiver = receiver
        self.on_host: torch.Tensor | None = None
        self.work: dist.Work | None = None
