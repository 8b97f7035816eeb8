"""`InputLines`: the requests in a batch's input, one line at a time, and the errors of invalid lines.

Each line is `{"custom_id", "method": "POST", "url", "body"}` (https://platform.openai.com/docs/guides/batch).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from orca_master.batches.disk_threads import DiskThreads

MOST_ID_CHARACTERS = 512
"""Of a `custom_id`."""
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A request of a batch. `number`: of its line, from 0, without blank lines. `body`: JSON of the request.

    `num_choices`: answers that are generated for it, or embeddings. `model`: that the body names, "" without a name.
    """

    number: int
    custom_id: str
    body: bytes
    num_choices: int = 1
    model: str = ""


@dataclass(frozen=True, slots=True)
class InvalidLine:
    """A line that is no request; `custom_id` is None if it has none."""

    number: int
    custom_id: str | None
    message: str
    code: str = "invalid_line"


class InputLines:
    """The lines of the file at `path` for the route `endpoint`. A context manager; entry raises OSError.

    One task at a time calls `next`. A line of more than `max_bytes` is invalid and not read as a whole; one of more
    than `most_choices` is invalid, too.
    """

    def __init__(self, path: Path, endpoint: str, max_bytes: int, most_choices: int, threads: DiskThreads) -> None:
        self._path, self._endpoint, self._max_bytes = path, endpoint, max_bytes
        self._most_choices, self._threads = most_choices, threads
        self._file: IO[bytes]
        self._number = 0
        self._seen: set[bytes] = set()
        """Digests of the `custom_id` of earlier lines."""

    def __enter__(self) -> InputLines:
        self._file = self._path.open("rb")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    async def next(self) -> BatchLine | InvalidLine | None:
        """Return the next line, None at the end of the file. Raises OSError."""
        return await self._threads.run(self._next)

    def _next(self) -> BatchLine | InvalidLine | None:
        line = self._read()
        if line is None:
            return None
        self._number += 1
        return self._parsed(self._number - 1, line)

    def _read(self) -> bytes | None:
        """Return the next line that is not blank, cut after `max_bytes` + 1 bytes."""
        while line := self._file.readline(self._max_bytes + 2):
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = self._file.readline(1 << 20)
            if not line.isspace():
                return line.removesuffix(b"\n")
        return None

    def _parsed(self, number: int, line: bytes) -> BatchLine | InvalidLine:
        if len(line) > self._max_bytes:
            return InvalidLine(number, None, f"the line exceeds {self._max_bytes} bytes (--max-batch-line-bytes)")
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            return InvalidLine(number, None, "the line is not valid JSON")
        if not isinstance(fields, dict):
            return InvalidLine(number, None, "an object with custom_id, method, url and body is expected")
        custom_id = fields.get("custom_id")
        if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MOST_ID_CHARACTERS:
            return InvalidLine(number, None, f"custom_id: a text of 1 to {MOST_ID_CHARACTERS} characters is expected")
        if error := self._repeated(custom_id) or self._error_of(fields):
            return InvalidLine(number, custom_id, error)
        body = fields["body"]
        if self._endpoint == RESPONSES and body.get("store") is None:
            body["store"] = False  # those of a batch would push out the stored responses of their key
        model = body.get("model")
        named = model if isinstance(model, str) else ""
        return BatchLine(number, custom_id, json.dumps(body).encode(), self._choices_of(body), named)

    def _repeated(self, custom_id: str) -> str:
        """Return the error of a `custom_id` that an earlier line has, "" for a new one."""
        digest = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._seen:
            return "custom_id: an earlier line has the same one"
        self._seen.add(digest)
        return ""

    def _error_of(self, fields: dict[str, Any]) -> str:
        """Return what is wrong with a line, "" if it is a request."""
        body = fields.get("body")
        if fields.get("method") != "POST":
            return 'method: "POST" is expected'
        if fields.get("url") != self._endpoint:
            return f"url: {self._endpoint} is expected, the endpoint of the batch"
        if not isinstance(body, dict):
            return "body: an object is expected, the body of a request"
        return self._error_of_body(body)

    def _error_of_body(self, body: dict[str, Any]) -> str:
        if body.get("stream"):
            return "body.stream: answers of a batch are not streamed: leave stream out"
        if body.get("background"):
            return "body.background: a batch waits for its answers: leave background out"
        if (num_choices := self._choices_of(body)) > self._most_choices:
            return (
                f"body: {num_choices} choices (prompts x n) are more than the {self._most_choices} that batches "
                "compute at a time (--batch-concurrency): send several lines"
            )
        return ""

    def _choices_of(self, body: dict[str, Any]) -> int:
        """Return the places that a request takes: of texts to embed all at most, which they take in turn."""
        if self._endpoint == EMBEDDINGS:
            return min(_num_prompts(body.get("input")), self._most_choices)
        return choices_of(body)


def choices_of(body: dict[str, Any]) -> int:
    """Return how many answers a request asks for, prompts x n, at least 1; the route refuses invalid values."""
    return _num_prompts(body.get("prompt")) * max(1, _count(body.get("n")), _count(body.get("best_of")))


def _num_prompts(prompts: object) -> int:
    """Return the number of texts or lists of token ids, at least 1."""
    return len(prompts) if isinstance(prompts, list) and prompts and isinstance(prompts[0], (str, list)) else 1


def _count(value: object) -> int:
    """Return a number as the routes read it, also from a text; 0 if it is none."""
    try:
        return int(float(value)) if isinstance(value, (int, float, str)) else 0
    except (ValueError, OverflowError):
        return 0
