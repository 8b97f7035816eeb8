"""`Alarm`: waits for a request at masters that sleep, by calls that a master answers as soon as one comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from orca_operator.master_client import Door, MasterClient, MasterError
from orca_operator.sleep import sleeps

logger = logging.getLogger(__name__)

CALL_SECONDS = 6.0
"""How long the master waits for a request until it answers without one."""
PAUSE_SECONDS = 0.1
RETRY_SECONDS = 1.0
"""Pauses after an answer and after a failed call: also a master that answers at once, or not, is asked slowly."""


class Alarm:
    """Calls `on_request` once when a watched master no longer sleeps; the next `watch` asks that master again."""

    def __init__(self, client: MasterClient, on_request: Callable[[], None]) -> None:
        self._client = client
        self._on_request = on_request
        self._tasks: dict[Door, asyncio.Task[None]] = {}

    def watch(self, doors: Collection[Door]) -> None:
        """Ask the masters behind `doors`, and no others."""
        for door in self._tasks.keys() - set(doors):
            self._tasks.pop(door).cancel()
        for door in doors:
            if door not in self._tasks or self._tasks[door].done():
                self._tasks[door] = asyncio.create_task(self._run(door))

    async def _run(self, door: Door) -> None:
        while True:
            pause = PAUSE_SECONDS
            try:
                report = await self._client.state(door, wait=CALL_SECONDS)
                if not sleeps(report):
                    self._on_request()
                    return
            except MasterError as error:
                logger.debug("%s", error)
                pause = RETRY_SECONDS
            await asyncio.sleep(pause)
