"""`ResponseNotices`: what the master reports to an API process about background responses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from orca_master.api_processes.link_messages import ResponsesChanged, StopResponse


class ResponseNotices:
    """The waiting readers of this process, and the responses that it generates."""

    def __init__(self) -> None:
        self._readers: dict[str, set[asyncio.Event]] = {}
        self._stops: dict[str, Callable[[], None]] = {}

    @contextlib.contextmanager
    def watching(self, response_id: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set at every reported change of a response, and at the end of the link."""
        changed = asyncio.Event()
        readers = self._readers.setdefault(response_id, set())
        readers.add(changed)
        try:
            yield changed
        finally:
            readers.discard(changed)
            if not readers:
                self._readers.pop(response_id, None)

    def begin(self, response_id: str, stop: Callable[[], None]) -> None:
        """Call `stop` if the master ends a response before `end`."""
        self._stops[response_id] = stop

    def end(self, response_id: str) -> None:
        """Forget a response of `begin`."""
        self._stops.pop(response_id, None)

    def handle(self, message: ResponsesChanged | StopResponse) -> None:
        """Process a message."""
        match message:
            case ResponsesChanged(response_ids):
                for response_id in response_ids:
                    for changed in self._readers.get(response_id, ()):
                        changed.set()
            case StopResponse(response_id):
                self._stops.pop(response_id, lambda: None)()

    def close(self) -> None:
        """Wake all readers, because the link has ended."""
        self.handle(ResponsesChanged(list(self._readers)))
