"""`RequestParser`: httptools' parser of requests, which reads the body of a request that offers an upgrade, too.

A server may ignore `Upgrade` (RFC 9110, section 7.8); some clients offer h2c with every request. httptools ends such a
request after its head. Here a second parser continues: it reads a head with the framing of the request, whose callbacks
are dropped, then the body and the requests behind it.
"""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

FRAMING = (b"content-length", b"transfer-encoding")
"""Header fields that determine the end of a body (RFC 9112, section 6)."""


class RequestParser:
    """Has the methods of httptools.HttpRequestParser that uvicorn calls, and calls those of `protocol`."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self.on_body = protocol.on_body
        self._framing: list[tuple[bytes, bytes]] = []
        self._body_follows = False
        """True from the head of a request with an upgrade until its body begins."""
        self._repeats_head = False
        """True while a parser reads a head again."""
        self._parser = self._new_parser()

    def feed_data(self, data: bytes) -> None:
        """Parse data; raise httptools.HttpParserError."""
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            if self._body_follows:
                self._begin_body()

    def get_method(self) -> bytes:
        """See httptools."""
        return self._parser.get_method()

    def get_http_version(self) -> str:
        """See httptools."""
        return self._parser.get_http_version()

    def should_keep_alive(self) -> bool:
        """See httptools."""
        return self._parser.should_keep_alive()

    def should_upgrade(self) -> bool:
        """Return False: no upgrade is supported."""
        return False

    # ---- from the parser ----

    def on_message_begin(self) -> None:
        """Handle the first byte of a request."""
        if not self._repeats_head:
            self._framing = []
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Handle a part of the URL."""
        if not self._repeats_head:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a field of the head or of the trailer."""
        if not self._repeats_head:
            self._protocol.on_header(name, value)
            if name.lower() in FRAMING:
                self._framing.append((name, value))

    def on_headers_complete(self) -> None:
        """Handle the end of a head."""
        if not self._repeats_head:
            self._body_follows = self._parser.should_upgrade() and bool(self._framing)
            self._framing.append((b"Connection", b"keep-alive" if self._parser.should_keep_alive() else b"close"))
            self._protocol.on_headers_complete()

    def on_message_complete(self) -> None:
        """Handle the end of a request, unless the parser has skipped its body."""
        if not self._body_follows:
            self._protocol.on_message_complete()

    # ---- parsers ----

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        return parser

    def _begin_body(self) -> None:
        """Let a new parser expect the body of the request whose head was read."""
        fields = b"".join(name + b": " + value + b"\r\n" for name, value in self._framing)
        head = f"POST / HTTP/{self._parser.get_http_version()}\r\n".encode() + fields + b"\r\n"
        self._parser = self._new_parser()
        self._body_follows, self._repeats_head = False, True
        try:
            self._parser.feed_data(head)
        finally:
            self._repeats_head = False
