"""`RendezvousStore`: the rendezvous as a torch Store, for gloo and NCCL in a rank.

torch's own stores listen on an unauthenticated port; this one uses the rank's controller (rendezvous.py).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

from orca_protos import engine_pb2 as pb
from torch.distributed import Store  # type: ignore[attr-defined]


class RendezvousStore(Store):
    """The values of `epoch`. `ask` sends a request and waits for the reply. Thread-safe.

    torch calls these methods, also from C++ (a barrier of symmetric memory is `add`, `set` and `wait`). They raise
    RuntimeError on a timeout or if the controller refuses. All other methods of torch's interface raise RuntimeError.
    """

    def __init__(
        self, epoch: int, ask: Callable[[pb.RendezvousRequest], pb.RendezvousReply], timeout: datetime.timedelta
    ) -> None:
        super().__init__()
        self._epoch = epoch
        self._ask = ask
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key for all ranks."""
        self._exchange(key, self._timeout, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value."""
        return self._exchange(key, self._timeout)

    def add(self, key: str, amount: int) -> int:
        """Add to a key's number, 0 at first, and return the sum."""
        request = pb.RendezvousRequest(
            epoch=self._epoch, key=key, timeout_ms=_milliseconds(self._timeout), addend=amount
        )
        return int(self._value(request))

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        """Wait until all keys are set; gloo's `timeout` is that of a connection, and a rank may come later."""
        for key in keys:
            self._exchange(key, self._timeout if timeout is None else max(timeout, self._timeout))

    def check(self, keys: Sequence[str]) -> bool:
        """Return True if all keys are set."""
        try:
            for key in keys:
                self._exchange(key, datetime.timedelta(0))
        except RuntimeError:
            return False
        return True

    def clone(self) -> RendezvousStore:
        """Return this store: it has no connection of its own."""
        return self

    def _exchange(self, key: str, timeout: datetime.timedelta, value: bytes | None = None) -> bytes:
        request = pb.RendezvousRequest(epoch=self._epoch, key=key, timeout_ms=_milliseconds(timeout))
        if value is not None:
            request.value = value
        return self._value(request)

    def _value(self, request: pb.RendezvousRequest) -> bytes:
        reply = self._ask(request)
        if reply.error:
            raise RuntimeError(reply.error)
        return reply.value


def _milliseconds(timeout: datetime.timedelta) -> int:
    return int(timeout.total_seconds() * 1000)
