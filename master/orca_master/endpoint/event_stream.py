"""`EventStream`: a response of server-sent events with a sign of life whenever nothing else has been sent for a while.

Proxies end connections on which nothing happens, usually after 60 s: while a request waits in the queue, or for its
pipeline to be formed again. Clients ignore comments (WHATWG HTML, section 9.2.6).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

COMMENT_SECONDS = 5.0
"""Silence on a stream before each comment."""
COMMENT = b": waiting\n\n"


class EventStream(StreamingResponse):
    """Sends `events`, those of each list in one write, and `keep_alive` after each COMMENT_SECONDS of silence.

    `first`: the task that `events` awaits first. While it is not done, the client has already waited for so long that
    a comment is due; if the client leaves before `events` runs, nothing else cancels the task.
    """

    def __init__(self, events: AsyncIterator[list[str]], first: asyncio.Task[Any], keep_alive: bytes = COMMENT) -> None:
        super().__init__((), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._events = events
        self._first = first
        self._keep_alive = keep_alive
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Starlette's Response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._first.cancel()

    async def stream_response(self, send: Send) -> None:
        """Send the events and, beside them, the comments; no comment is sent after the last message."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if not self._first.done():
            await send(_body(self._keep_alive))
        self._sent_at = time.monotonic()
        comments = asyncio.create_task(self._comment(send))
        try:
            async for together in self._events:
                await send(_body("".join(together).encode()))
                self._sent_at = time.monotonic()
        finally:
            comments.cancel()
            await asyncio.gather(comments, return_exceptions=True)
        await send(_body(b"", more=False))

    async def _comment(self, send: Send) -> None:
        while True:
            await asyncio.sleep(self._sent_at + COMMENT_SECONDS - time.monotonic())
            if time.monotonic() - self._sent_at >= COMMENT_SECONDS:
                await send(_body(self._keep_alive))
                self._sent_at = time.monotonic()


def _body(data: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}
