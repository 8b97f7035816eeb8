"""`Journal`: an append-only log of accepted requests and their tokens, in files of one folder.

A line is written to the kernel before the client receives the token, so that the death of the process loses nothing,
and that of the machine little (syncer.py). A file is deleted as soon as all requests that begin in it or in earlier
files are forgotten. Beyond COMPACT_BYTES the requests that begin in the oldest file are written again into the newest,
a few with each line. When writing fails, the journal is off until the next start, and serving goes on. Files contain
prompts: only their owner may read them.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orca_protos import engine_pb2 as pb

from orca_master.errors import ConfigurationError
from orca_master.journal import records
from orca_master.journal.folder_lock import lock_folder
from orca_master.journal.reading import read_folder, segment_path
from orca_master.journal.records import Accepted, Ended, JournalledRequest, Token
from orca_master.journal.syncer import Syncer
from orca_master.journal.trace_parents import parent_line

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 8 << 20
"""Size after which a new file begins."""
MAX_BYTES = 256 << 20
"""Maximum size of all files: the journal is off beyond it."""
COMPACT_BYTES = 64 << 20
"""Total size above which the requests of the oldest file are written again, and the oldest file is deleted."""
MOVE_BYTES = 16 << 10
"""Bytes that are written again with a line, or twice those of a longer line: the calling thread serves meanwhile."""


class Journal:
    """The journal in `folder`, for one master at a time; raises ConfigurationError.

    `requests` are the requests in the folder, by number, for `model`. Call all methods on one thread; another one may
    create the journal, which reads the folder: tens of seconds for the largest. The reading ends with an error, and
    changes nothing, when `is_cancelled` returns True.
    """

    def __init__(
        self, folder: Path, model: str, is_cancelled: Callable[[], bool] = lambda: False, max_bytes: int = MAX_BYTES
    ) -> None:
        self.failure = ""
        """Why the journal is off, "" while it is on."""
        self._folder = folder
        self._header = self._head = records.encode(records.header(model))
        """The first record of each file; the first three of the newest one."""
        self._max_bytes = max_bytes
        self._tokens: list[Sequence[Any]] = []
        self._num_rewritten = 0
        """Bytes of the newest file that were written again, which do not count for its size."""
        self._moving: list[int] = []
        """Numbers of requests that begin in the file `_moving_from` and are to be written again."""
        self._moving_from = 0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_file = lock_folder(folder)
            try:
                contents = read_folder(folder, self._header, is_cancelled)
            except BaseException:
                os.close(self._lock_file)
                raise
        except OSError as error:
            raise ConfigurationError(f"--journal {folder}: {error.strerror}") from error
        self.requests = contents.requests
        self.content_of: Callable[[int], JournalledRequest] = self.requests.__getitem__
        """Returns the content of a remembered request, by its number."""
        self._unfinished = {number for number, whole in self.requests.items() if whole.ended is None}
        """Numbers of the remembered requests that have not ended."""
        self._sizes = contents.sizes
        self._first_segments = contents.first_segments
        self._num_beginnings = Counter(self._first_segments.values())
        """Number of remembered requests that begin in each file."""
        self._weights = contents.weights
        self.weights_of: Callable[[], pb.ModelFacts] = lambda: self._weights
        """Returns the present weights, which precede the next tokens if `_weights`, the last in the files, differ."""
        self._next_number = max(self._first_segments, default=0) + 1
        self._descriptor = -1
        self._syncer = Syncer(folder, self._fail)
        self._begin_segment(max(self._sizes, default=0) + 1)

    @property
    def is_on(self) -> bool:
        """True while records are written."""
        return not self.failure

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(self._sizes.values())

    def accept(self, request: Accepted) -> int:
        """Write an accepted request; return its number."""
        number, self._next_number = self._next_number, self._next_number + 1
        self._begins(number)
        self._unfinished.add(number)
        self._write(records.encode(records.accepted(number, request)) + parent_line(number, request.parent))
        return number

    def note(self, number: int, output: Token) -> None:
        """Record a token; `flush` writes it."""
        self._tokens.append(records.token(number, output))

    def flush(self) -> None:
        """Write the recorded tokens. Call before a client receives one of them."""
        if line := self._take_tokens():
            self._write(line)

    def end(self, number: int, end: Ended) -> None:
        """Write the end of a request."""
        self.flush()
        self._write(records.encode(records.ended(number, end)))
        self._unfinished.discard(number)
        self._delete_unneeded()

    def resume(self, numbers: Sequence[int]) -> None:
        """Write that requests of an earlier master are continued."""
        self._write(records.encode(["resumed", *numbers]))

    def forget(self, number: int) -> None:
        """Forget a request, and delete the files that only have forgotten requests."""
        self._unfinished.discard(number)
        if (segment := self._first_segments.pop(number, None)) is not None:
            self._num_beginnings[segment] -= 1
        self._delete_unneeded()

    def close(self) -> None:
        """Flush, stop the thread, delete the files if no request is remembered, and unlock the folder."""
        self.flush()
        self._append(records.encode(["stopped"]))
        self._syncer.close()
        if not self._first_segments:  # no prompt stays behind
            self._delete_all()
        self.failure = self.failure or "closed"
        os.close(self._lock_file)

    # -- files ---------------------------------------------------------------------------------------

    def _path(self, segment: int) -> Path:
        return segment_path(self._folder, segment)

    def _begins(self, number: int) -> None:
        """Note that a request begins in the newest file."""
        self._first_segments[number] = segment = max(self._sizes)
        self._num_beginnings[segment] += 1

    def _delete_unneeded(self) -> None:
        if not self._first_segments and self._sizes[max(self._sizes)] > len(self._head):
            self._rotate()
        if self.failure and not self._unfinished:  # the ends of all requests that the files have could not be written
            self._delete_all()
        for segment in list(self._sizes)[:-1]:
            if self._num_beginnings[segment]:
                break
            del self._num_beginnings[segment], self._sizes[segment]
            if segment == self._moving_from or self._syncer.is_deleting:
                self._syncer.delete_after_sync(self._path(segment))
            else:
                self._delete(segment)

    def _delete_all(self) -> None:
        self._syncer.delete_now()
        for segment in self._sizes:
            self._delete(segment)
            self._sizes[segment] = 0

    def _delete(self, segment: int) -> None:
        with contextlib.suppress(OSError):  # a disk that has become read-only
            self._path(segment).unlink()

    def _rotate(self) -> None:
        """Begin a new file; beyond COMPACT_BYTES begin to write the oldest file's requests again."""
        if self.failure or not self._begin_segment(max(self._sizes) + 1):
            return
        # With fewer than three files the newest request may be one whose content is not known yet.
        if self.num_bytes >= COMPACT_BYTES and len(self._sizes) >= 3 and not self._moving:
            self._moving_from = min(self._sizes)
            self._moving = [number for number, first in self._first_segments.items() if first == self._moving_from]

    def _move(self, num_bytes: int) -> None:
        """Write requests of the oldest file again, about `num_bytes` of them; after the last the file is deleted."""
        self._append(self._take_tokens())  # they are part of the content
        while self._moving and num_bytes > 0:
            if (number := self._moving.pop()) not in self._first_segments:
                continue
            content = self.content_of(number)
            change = self._change_to(content.weights or self.weights_of())
            line = change + records.encode(records.request(number, content))
            line += parent_line(number, content.accepted.parent)
            self._append(line)
            if self.failure:
                return
            num_bytes -= len(line)
            self._num_rewritten += len(line)
            self._num_beginnings[self._moving_from] -= 1
            self._begins(number)
        if not self._moving:
            self._delete_unneeded()

    def _take_tokens(self) -> bytes:
        """Return the line of the noted tokens, after that of new weights, and forget them; empty without any."""
        tokens, self._tokens = self._tokens, []
        return self._change_to(self.weights_of()) + records.encode(["tokens", *tokens]) if tokens else b""

    def _change_to(self, weights: pb.ModelFacts) -> bytes:
        """Return the line of other weights than the last ones, empty for the same."""
        last, self._weights = self._weights, weights
        return b"" if weights is last or weights == last else records.encode(records.weights(weights))

    def _begin_segment(self, segment: int) -> bool:
        """Begin a new file; return False if that failed."""
        last = max(self._sizes, default=0)
        self._head = self._header + records.encode(records.previous(last, self._sizes.get(last, 0)))
        self._head += records.encode(records.weights(self._weights))
        self._sizes[segment] = self._num_rewritten = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        try:
            self._descriptor = os.open(self._path(segment), flags, 0o600)
        except OSError as error:
            self._fail(str(error.strerror))
            return False
        self._syncer.begin(self._descriptor)
        self._put(self._head)
        return self.is_on

    def _write(self, line: bytes) -> None:
        self._append(line)
        if self._moving:
            self._move(max(MOVE_BYTES, 2 * len(line)))
        if self._sizes[max(self._sizes)] - self._num_rewritten >= SEGMENT_BYTES:
            self._rotate()

    def _append(self, line: bytes) -> None:
        """Append a line to the newest file."""
        if self.failure or not line:
            return
        if self.num_bytes + len(line) > self._max_bytes:
            self._fail(f"its files would exceed {self._max_bytes} bytes")
        else:
            self._put(line)

    def _put(self, line: bytes) -> None:
        try:
            written = os.write(self._descriptor, line)
            newest = max(self._sizes)
            self._sizes[newest] += written
            end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
            if end != self._sizes[newest]:
                os.ftruncate(self._descriptor, end - written)
                self._fail(f"another program has changed {self._path(newest).name}")
            elif written < len(line):
                self._fail(f"no space left: {written} of {len(line)} bytes were written")
        except OSError as error:
            self._fail(str(error.strerror))
        self._syncer.note_written()

    def _fail(self, reason: str) -> None:
        """Switch the journal off, called also by the syncer's thread."""
        if not self.failure:
            self.failure = reason
            logger.error("--journal %s: %s: the journal is off, serving goes on", self._folder, reason)
