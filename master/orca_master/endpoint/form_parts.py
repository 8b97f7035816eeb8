"""`FormParts`: the fields of a multipart/form-data body (RFC 7578) as they come, in bounded memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from orca_master.errors import RequestError

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of every malformed body of a client


@dataclass(slots=True)
class FormPart:
    """A part of a field's value; `is_first` with the first part of a field, which may be empty."""

    name: str
    filename: str
    data: bytes
    is_first: bool = False


@dataclass(slots=True)
class _Header:
    name: bytes = b""
    value: bytes = b""
    disposition: bytes = b""


class FormParts:
    """Parses a body whose header Content-Type is `content_type`; raise RequestError if it is another type."""

    def __init__(self, content_type: str) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise RequestError("the body must be multipart/form-data with the fields purpose and file")
        self._parts: list[FormPart] = []
        self._header = _Header()
        self._name = self._filename = ""
        self._is_complete = False
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._add_name,
                    "on_header_value": self._add_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._add_data,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _invalid(error) from error

    def feed(self, data: bytes) -> Iterator[FormPart]:
        """Yield what the next bytes of the body contain; raise RequestError for an invalid body."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _invalid(error) from error
        parts, self._parts = self._parts, []
        yield from parts

    def end(self) -> None:
        """Raise RequestError if the body is incomplete."""
        if not self._is_complete:
            raise RequestError("the body is not complete: its last boundary is missing")

    def _begin_part(self) -> None:
        self._header = _Header()

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._header.name += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._header.value += data[start:end]

    def _end_header(self) -> None:
        if self._header.name.lower() == b"content-disposition":
            self._header.disposition = self._header.value
        self._header.name = self._header.value = b""

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._header.disposition)
        self._name = options.get(b"name", b"").decode(errors="replace")
        self._filename = options.get(b"filename", b"").decode(errors="replace")
        self._parts.append(FormPart(self._name, self._filename, b"", is_first=True))

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        self._parts.append(FormPart(self._name, self._filename, data[start:end]))

    def _end(self) -> None:
        self._is_complete = True


def _invalid(error: Exception) -> RequestError:
    return RequestError(f"the body is no valid multipart/form-data: {str(error)[:200]}")
