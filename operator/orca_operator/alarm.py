"""`Alarm`: waits for a request at a master without pipelines, by calls that the master answers when one comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from orca_operator.master_client import Door, MasterClient, MasterError
from orca_operator.observe import holds_requests

logger = logging.getLogger(__name__)

CALL_SECONDS = 6.0
"""How long the master waits for a request until it answers without one."""
PAUSE_SECONDS = 0.1
RETRY_SECONDS = 1.0
"""Pauses after an answer and after a failed call: also a master that answers at once, or not, is asked slowly."""


class Alarm:
    """Calls `on_request` once after each `watch` of a master with a request."""

    def __init__(self, client: MasterClient, on_request: Callable[[], None]) -> None:
        self._client = client
        self._on_request = on_request
        self._door: Door | None = None
        self._task: asyncio.Task[None] | None = None

    def watch(self, door: Door) -> None:
        """Ask the master behind `door` from now on; a call to another door or with other credentials is the last."""
        self._door = door
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Ask no master."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            pause = PAUSE_SECONDS
            assert self._door is not None
            try:
                report = await self._client.state(self._door, wait=CALL_SECONDS)
                if holds_requests(report):
                    self._on_request()
                    return
            except MasterError as error:
                logger.debug("%s", error)
                pause = RETRY_SECONDS
            await asyncio.sleep(pause)
