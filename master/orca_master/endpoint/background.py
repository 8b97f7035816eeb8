"""Background responses of /v1/responses: they run without their client, and add their events to the response store.

A request runs in the process that has received it. `BackgroundRuns` starts it and returns once the engine has accepted
it; from then on clients of any process read it from the store (background_stream.py). It ends with its last token, with
an error, or when it is cancelled or deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from orca_master.endpoint.activity import Activity
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.delivery import first_of, groups_of
from orca_master.endpoint.response_answer import FAILURES, ResponseAnswer, fault_of
from orca_master.endpoint.response_objects import ResponseObject, failed_response, wire_event
from orca_master.endpoint.response_output import Event
from orca_master.endpoint.response_store import MAX_RESPONSE_BYTES, ResponseStore, StoredResponse
from orca_master.errors import EngineUnavailableError

logger = logging.getLogger(__name__)

NO_ROOM = (
    "the response has more bytes than the server stores of a background response (--max-stored-response-bytes): set "
    "max_output_tokens, or send the request without background"
)


class BackgroundRun:
    """One background response. `previous`: see StoredResponse; `record`: the data of a response in the store.

    `begun`: the queued response.
    """

    def __init__(
        self,
        store: ResponseStore,
        owner: str,
        previous: str,
        answer: ResponseAnswer,
        record: Callable[[ResponseObject], bytes],
        has_stream: bool,
    ) -> None:
        self.owner = owner
        self.response_id = answer.response["id"]
        self._store = store
        self._previous = previous
        self._answer = answer
        self.begun = answer.response
        self._record = record
        self._has_stream = has_stream
        self._num_stored = 0
        """Number of stored events."""
        self._is_in_progress = False

    async def begin(self, stop: Callable[[], None]) -> None:
        """Store the queued response; raise RequestError or QueueFullError."""
        stored = StoredResponse(self.response_id, self.owner, self._previous, self._record(self.begun))
        events = self._wire(self._answer.begin())
        await self._store.begin(stored, events, stop)
        self._num_stored = len(events)

    async def abandon(self) -> None:
        """Remove the response, which has not begun to run."""
        await self._store.delete(self.owner, self.response_id)

    async def run(self, first: asyncio.Task[list[Piece]], pieces: AsyncIterator[list[Piece]]) -> None:
        """Store the events of the pieces and the response at its end. Closes `pieces`.

        Raises EngineUnavailableError if the master, which has the store, has ended.
        """
        try:
            *before, last = await self._generate(first, pieces)
            if not (await self._advance(before) and await self._end(self._answer.response, last)):
                await self._end_without_output(NO_ROOM)
        except EngineUnavailableError:
            raise
        except Exception as error:
            logger.exception("the background response %s cannot be generated", self.response_id)
            await self._end_without_output(f"internal error: {type(error).__name__}")

    async def _generate(self, first: asyncio.Task[list[Piece]], pieces: AsyncIterator[list[Piece]]) -> list[Event]:
        """Return the events after the last piece; the last one has the response."""
        try:
            async with groups_of(first, pieces) as groups:
                events = self._answer.start()
                async for together in groups:
                    events += [event for piece in together for event in self._answer.feed(piece)]
                    if not await self._advance(events):
                        return self._answer.fail("server_error", NO_ROOM)
                    events = []
            return self._answer.end()
        except FAILURES as error:
            return self._answer.fail(*fault_of(error))

    async def _advance(self, events: Sequence[Event]) -> bool:
        """Store events and, at first, that the response is in progress; return False if they have no room."""
        wire = self._wire(events)
        if not wire and self._is_in_progress:
            return True
        self._is_in_progress = True
        for group in _groups(wire):
            if not await self._store.advance(self.owner, self.response_id, group):
                return False
            self._num_stored += len(group)
        return True

    async def _end(self, response: ResponseObject, last: Event) -> bool:
        return await self._store.end(self.owner, self.response_id, self._record(response), self._wire([last]))

    async def _end_without_output(self, message: str) -> None:
        failed = failed_response(self.begun, "server_error", message)
        await self._end(failed, {"type": "response.failed", "response": failed})

    def _wire(self, events: Sequence[Event]) -> list[bytes]:
        if not self._has_stream:
            return []
        return [wire_event(event, self._num_stored + place).encode() for place, event in enumerate(events)]


class BackgroundRuns:
    """The background responses that run in this process, and their readers."""

    def __init__(self) -> None:
        self.activity = Activity()
        """The responses that run or are read."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(
        self, run: BackgroundRun, pieces: AsyncIterator[list[Piece]], accepted: asyncio.Event
    ) -> ResponseObject:
        """Begin a response; return it when the engine has accepted it, which sets `accepted` (`Generator.pieces`).

        Raises the refusal of the store or of the engine. A call that is cancelled leaves nothing behind.
        """
        tasks: list[asyncio.Task[None]] = []
        try:
            await run.begin(lambda: _cancel(tasks))
            first = await _accepted(pieces, accepted)
        except BaseException:
            with contextlib.suppress(EngineUnavailableError):
                await run.abandon()
            raise
        task = asyncio.create_task(self._run(run, first, pieces))
        tasks.append(task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run.begun

    async def _run(
        self, run: BackgroundRun, first: asyncio.Task[list[Piece]], pieces: AsyncIterator[list[Piece]]
    ) -> None:
        with self.activity.one(), contextlib.suppress(EngineUnavailableError):
            await run.run(first, pieces)


def _groups(events: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Divide events into groups that the store takes at once; no events are one group."""
    group: list[bytes] = []
    num_bytes = 0
    for event in events:
        num_bytes += len(event)
        if group and num_bytes > MAX_RESPONSE_BYTES:
            yield group
            group, num_bytes = [], len(event)
        group.append(event)
    yield group


async def _accepted(pieces: AsyncIterator[list[Piece]], accepted: asyncio.Event) -> asyncio.Task[list[Piece]]:
    """Return the task of the first pieces as soon as the engine has accepted the request; raise its refusal."""
    first = first_of(pieces)
    waiting = asyncio.create_task(accepted.wait())
    try:
        await asyncio.wait((first, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not accepted.is_set():
            first.result()
        return first
    except BaseException:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        raise
    finally:
        waiting.cancel()


def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
