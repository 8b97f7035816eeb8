"""`BoundedProtocol`: one HTTP/1.1 connection with bounds on memory and time.

uvicorn's parser bounds nothing before a request is complete. Here the head is bounded in bytes, fields and time;
connections without a request, and clients that do not read their responses, are bounded in time. The application reads
and bounds the body; a connection whose request body was not read completely is closed after the response.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from orca_protos.http_limits import MIN_BYTES_PER_SECOND, HttpLimits
from orca_protos.http_parser import RequestParser

LINGER_SECONDS = 1.0
"""How long data that a client sends after its response is read and dropped. Closing immediately would reset the
connection, and the client could lose the response (RFC 9112, section 9.6)."""
MAX_PIPELINED = 16
"""Maximum number of pipelined requests that wait behind the current one."""


class Registry(Protocol):
    """A port's record of the states of its connections (http_listener.py)."""

    def note_waiting(self, connection: BoundedProtocol) -> None:
        """Note that the connection has no request in progress."""

    def note_busy(self, connection: BoundedProtocol) -> None:
        """Note that the head of a request has arrived."""

    def note_closed(self, connection: BoundedProtocol) -> None:
        """Note that the connection is closed."""


class _RefusedError(Exception):
    """Raised in a callback of the parser to stop it."""


class _Transport:
    """The transport that uvicorn sees: `close` and `is_closing` come from the protocol, the rest from the transport."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None], is_closing: Callable[[], bool]) -> None:
        self._transport = transport
        self.close = close
        self.is_closing = is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedProtocol(HttpToolsProtocol):
    """The protocol of one connection, which owns the transport; `registry` is notified of its state."""

    def __init__(self, config: Config, state: ServerState, limits: HttpLimits, registry: Registry) -> None:
        super().__init__(config, state, {})
        self.parser = RequestParser(self)  # type: ignore[assignment]  # as far as uvicorn uses one
        self._limits = limits
        self._registry = registry
        self._real: asyncio.Transport | None = None
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        """Timeout of the client's next step: the first byte, the end of the head, or the end of the connection."""
        self._write_timer: asyncio.TimerHandle | None = None
        self._unwritten = 0
        self._refusal: tuple[int, str] | None = None
        self._receiving = False
        """True from the first byte of a request to its last."""
        self._in_head = False
        self._drops_data = False  # True behind a request that is not served: the response before it is the last
        self._keep_alive = False
        self._running: RequestResponseCycle | None = None
        """The request that is answered, or the last one that was."""
        self._num_requests = 0
        self._head_bytes = 0
        self._head_fields = 0
        self._silent_bytes = 0
        """Bytes since the parser's last callback: the parser stores the bytes of an incomplete field."""
        self._reported = False

    # ---- from the transport ----

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        self._real = transport
        super().connection_made(_Transport(transport, self._close, self._is_closing))  # type: ignore[arg-type]
        self._wait_for_request(min(self._limits.keep_alive_timeout, self._limits.header_timeout))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._closing = True
        self._cancel_timer()
        self._cancel_write_timer()
        super().connection_lost(exc)
        if self._running is not None:  # uvicorn tells the newest request, which may wait behind this one
            self._running.disconnected = True
            self._running.message_event.set()
        self._registry.note_closed(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol. One call has at most 256 KiB."""
        if self._closing or self._drops_data:
            return
        self._reported = False
        super().data_received(data)
        self._silent_bytes = 0 if self._reported else self._silent_bytes + len(data)
        if self._silent_bytes > self._limits.max_header_bytes:
            self._refuse(431, f"the request's head exceeds {self._limits.max_header_bytes} bytes")

    def pause_writing(self) -> None:
        """See asyncio.Protocol: the client does not read."""
        super().pause_writing()
        assert self._real is not None
        self._unwritten = self._real.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self._limits.write_timeout, self._check_reader)

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._cancel_write_timer()
        super().resume_writing()

    def abort(self) -> None:
        """End the connection immediately."""
        if self._real is not None:
            self._real.abort()

    def shutdown(self) -> None:
        """End the connection after the response in progress (called by uvicorn at the end of the server)."""
        self._keep_alive = False
        super().shutdown()

    # ---- from the parser ----

    def on_message_begin(self) -> None:
        """Handle the first byte of a request."""
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop_parsing(400, f"more than {MAX_PIPELINED} pipelined requests on this connection")
        super().on_message_begin()
        self._reported = self._receiving = self._in_head = True
        self._head_bytes = self._head_fields = 0
        self._set_timer(self._limits.header_timeout, self._end_slow_head)

    def on_url(self, url: bytes) -> None:
        """Handle a part of the URL."""
        self._count_head(len(url), 414, "URL")
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a field of the head, or of the trailer, which is counted and dropped."""
        self._count_head(len(name) + len(value) + len(": \r\n"), 431, "head")
        self._head_fields += 1
        if self._head_fields > self._limits.max_header_count:
            self._stop_parsing(431, f"the request has more than {self._limits.max_header_count} header fields")
        if self._in_head:
            super().on_header(name, value.strip(b" \t"))  # the parser keeps trailing blanks (RFC 9112, section 5)

    def on_headers_complete(self) -> None:
        """Start the application: the head is complete."""
        if self.parser.get_http_version() == "1.0":  # RFC 9110, section 10.1.1
            self.expect_100_continue = False
        super().on_headers_complete()
        if self.pipeline:  # uvicorn has paused reading: the client could leave unnoticed
            self.flow.resume_reading()
        self._reported, self._in_head = True, False
        self._cancel_timer()
        self._registry.note_busy(self)
        # No keep-alive until the body is complete: a response before that ends the connection.
        self._num_requests += 1
        last = self._num_requests >= self._limits.max_requests_per_connection
        self._keep_alive, self.cycle.keep_alive = self.cycle.keep_alive and not last, False

    def on_body(self, body: bytes) -> None:
        """Handle a part of the body; uvicorn does not read on while a longer one waits behind another request."""
        self._reported = True
        super().on_body(body)
        if self.pipeline and len(self.cycle.body) > HIGH_WATER_LIMIT:  # the client could leave unnoticed
            self.pipeline.popleft()
            last = self.pipeline[0][0] if self.pipeline else self._running
            assert last is not None
            last.keep_alive, self._drops_data = False, True
            self.flow.resume_reading()
            raise _RefusedError("a long body waits behind another request")

    def on_message_complete(self) -> None:
        """Handle the end of a request."""
        super().on_message_complete()
        self._reported, self._receiving = True, False
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keep_alive

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Continue after a response: start the next request, or close."""
        super().on_response_complete()
        if not self._closing and self.cycle.response_complete:
            self._registry.note_waiting(self)
            if not self._receiving:
                self._wait_for_request(self._limits.keep_alive_timeout)

    def send_400_response(self, msg: str) -> None:
        """Send the error after the parser has stopped: bad syntax, or an exceeded bound."""
        if not self._drops_data:
            self._refuse(*(self._refusal or (400, msg)))

    # ---- time and size ----

    def _count_head(self, num_bytes: int, status: int, part: str) -> None:
        self._reported = True
        self._head_bytes += num_bytes
        if self._head_bytes > self._limits.max_header_bytes:
            self._stop_parsing(status, f"the request's {part} exceeds {self._limits.max_header_bytes} bytes")

    def _stop_parsing(self, status: int, message: str) -> None:
        self._refusal = status, message
        raise _RefusedError(message)

    def _wait_for_request(self, seconds: float) -> None:
        self._registry.note_waiting(self)
        self._set_timer(seconds, self._close)

    def _end_slow_head(self) -> None:
        if self.flow.read_paused:  # the client may not send: an earlier request is being answered
            self._set_timer(self._limits.header_timeout, self._end_slow_head)
        else:
            self._refuse(408, f"the request's head was not complete within {self._limits.header_timeout:g} s")

    def _check_reader(self) -> None:
        """End a connection whose client reads the response too slowly."""
        assert self._real is not None
        unwritten = self._real.get_write_buffer_size()
        if self._unwritten - unwritten < MIN_BYTES_PER_SECOND * self._limits.write_timeout:
            self.abort()
            return
        self._unwritten = unwritten
        self._write_timer = self.loop.call_later(self._limits.write_timeout, self._check_reader)

    def _set_timer(self, seconds: float, call: Callable[[], None]) -> None:
        self._cancel_timer()
        self._timer = self.loop.call_later(seconds, call)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # ---- the end ----

    def _refuse(self, status: int, message: str) -> None:
        """Send an error in OpenAI's format without the application, and close."""
        if self._closing or self._real is None:
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._in_head or self.pipeline or cycle.response_started:
                self.abort()  # an earlier response is incomplete: the client would read the error as a part of it
                return
            cycle.disconnected = True
            cycle.message_event.set()
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        body = json.dumps({"error": error}).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self._receiving = True
        self._real.write(head.encode() + body)
        self._close()

    def _is_closing(self) -> bool:
        return self._closing or self._real is None or self._real.is_closing()

    def _close(self) -> None:
        """Close after the written data has been sent, within a time limit."""
        if self._closing or self._real is None:
            return
        self._closing = True
        if self._receiving:
            self._set_timer(LINGER_SECONDS, self.abort)
            self.flow.resume_reading()
            if self._real.can_write_eof():
                self._real.write_eof()
        else:
            self._set_timer(self._limits.write_timeout, self.abort)
            self._real.close()
