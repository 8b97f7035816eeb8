"""Files of `orca batch`: requests and answers as lines of JSON, in the format of OpenAI's Batch API.

https://platform.openai.com/docs/api-reference/batch
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from orca_master.errors import ConfigurationError

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages")
"""Values of `url`. OpenAI has the first four; the body is that of the route."""
ANSWER = b'{"id": "batch_'
"""The beginning of each line of the output."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A line of the input. `body`: that of a POST to `url`, one of ROUTES."""

    custom_id: str
    url: str
    body: dict[str, Any]


def read_requests(path: Path) -> Iterator[BatchRequest]:
    """Yield the requests of a file in their order; raise ConfigurationError with the number of an invalid line."""
    seen: set[str] = set()
    try:
        if path.exists() and not path.is_file():
            raise ConfigurationError(f"{path}: it is no regular file, and the input is read twice: write it to a file")
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.isspace():
                    continue
                try:
                    request = _request(json.loads(line))
                    if request.custom_id in seen:
                        raise ValueError(f"custom_id: {request.custom_id!r} is that of an earlier line, too")
                except json.JSONDecodeError as error:  # its own text counts lines and columns within this line
                    words = f"no JSON, {error.msg} at character {error.pos + 1}"
                    raise ConfigurationError(f"{path}: line {number}: {words}") from error
                except (ValueError, RecursionError) as error:
                    raise ConfigurationError(f"{path}: line {number}: {error}") from error
                seen.add(request.custom_id)
                yield request
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: it is not UTF-8") from error


def _request(line: Any) -> BatchRequest:
    """Return the request of a decoded line; raise ValueError with the field's name."""
    if not isinstance(line, dict):
        raise ValueError("an object with custom_id, method, url and body is expected")
    match line.get("custom_id"):
        case str(custom_id) if custom_id:
            pass
        case _:
            raise ValueError("custom_id: a string that is not empty is expected")
    if line.get("method") != "POST":
        raise ValueError('method: "POST" is expected')
    url, body = line.get("url"), line.get("body")
    if url not in ROUTES:
        raise ValueError(f"url: one of {', '.join(ROUTES)} is expected")
    if not isinstance(body, dict):
        raise ValueError(f"body: an object is expected, the body of a request to {url}")
    if body.get("stream"):
        raise ValueError("body.stream: answers of a batch are not streamed")
    if body.get("background"):
        raise ValueError("body.background: a batch waits for its answers")
    if url == "/v1/responses" and body.get("store") is None:
        body["store"] = False  # those of a batch would push out the stored responses of their key
    return BatchRequest(custom_id, url, body)


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The final answer to a request: HTTP status, the server's id of the request, and the decoded body."""

    custom_id: str
    status: int
    request_id: str
    body: Any

    def line(self) -> bytes:
        """Return the line of the output."""
        response = {"status_code": self.status, "request_id": self.request_id, "body": self.body}
        line = {"id": f"batch_{self.request_id}", "custom_id": self.custom_id, "response": response, "error": None}
        return json.dumps(line).encode() + b"\n"


def _is_cut_off(line: bytes) -> bool:
    """Whether an unfinished line is the beginning of an answer; after a loss of power a file can end with zeros."""
    return ANSWER.startswith(line.rstrip(b"\0")[: len(ANSWER)])


class AnswerFile:
    """The output: a line per answered request, in the order of the answers. A later run continues it.

    A context manager that holds the file's lock. Entry raises ConfigurationError if another process has the lock, and
    for a file with other lines than answers; a last line that is cut off, by the end of an earlier run, is removed.
    """

    def __init__(self, path: Path) -> None:
        self.answered: set[str] = set()
        """Values of `custom_id` of the requests with an answer."""
        self.num_refused = 0
        """Number of answers with another status than 200."""
        self._path = path
        self._file: IO[bytes]

    def __enter__(self) -> AnswerFile:
        try:
            self._file = open(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        except OSError as error:
            raise ConfigurationError(f"{self._path}: {error.strerror}") from error
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def _read(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(f"{self._path}: another process writes this file") from error
        whole = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n") and _is_cut_off(line):
                break
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("the line does not end")
                answer = json.loads(line)
                self._count(answer["custom_id"], answer["response"]["status_code"])
            except (ValueError, RecursionError, KeyError, TypeError) as error:
                raise ConfigurationError(
                    f"{self._path}: line {number} is no answer of a batch: give the name of a new file"
                ) from error
            whole += len(line)
        self._file.truncate(whole)
        self._file.seek(whole)

    def _count(self, custom_id: str, status: int) -> None:
        self.answered.add(custom_id)
        self.num_refused += status != 200

    def add(self, answer: BatchAnswer) -> None:
        """Write the line of an answer, at once; raise OSError."""
        self._file.write(answer.line())
        self._file.flush()
        self._count(answer.custom_id, answer.status)

    def __exit__(self, *_: object) -> None:
        self._file.close()
