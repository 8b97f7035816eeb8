"""`Journal`: an append-only log of accepted requests and their tokens, in files of one folder.

A line is written to the kernel before the client receives the token, so that the death of the process loses nothing; a
thread calls fsync(2) in batches, so that the death of the machine loses SYNC_SECONDS and the time of one fsync. A file
is deleted as soon as all requests that begin in it or in earlier files are forgotten. Beyond COMPACT_BYTES the requests
that begin in the oldest file are written again into the newest. When writing fails, the journal is off until the next
start, and serving goes on. Files contain prompts: only their owner may read them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orca_master.errors import ConfigurationError
from orca_master.journal import records
from orca_master.journal.folder_lock import lock_folder
from orca_master.journal.records import Accepted, Ended, JournalledRequest, RecordError, Token

logger = logging.getLogger(__name__)

SEGMENT_NAME = re.compile(r"\d{8}\.journal", re.ASCII)
SEGMENT_BYTES = 8 << 20
"""Size after which a new file begins."""
MAX_BYTES = 256 << 20
"""Maximum size of all files: the journal is off beyond it."""
COMPACT_BYTES = 64 << 20
"""Total size above which each new file begins with the requests of the oldest file, which is deleted."""
SYNC_SECONDS = 0.1
JOIN_SECONDS = 5.0


class Journal:
    """The journal in `folder`, for one master at a time; raises ConfigurationError.

    `requests` are the requests in the folder, by number, for `model`. Call all methods on one thread.
    """

    def __init__(self, folder: Path, model: str, max_bytes: int = MAX_BYTES) -> None:
        self.requests: dict[int, JournalledRequest] = {}
        self.failure = ""
        """Why the journal is off, "" while it is on."""
        self._folder = folder
        self._header = records.encode(records.header(model))
        self._max_bytes = max_bytes
        self._sizes: dict[int, int] = {}
        """Bytes of each file, by its number in ascending order."""
        self._first_segments: dict[int, int] = {}
        """Number of the file in which each remembered request begins."""
        self._unfinished: set[int] = set()
        """Numbers of the remembered requests that have not ended."""
        self._num_beginnings: Counter[int] = Counter()
        """Number of remembered requests that begin in each file."""
        self.content_of: Callable[[int], JournalledRequest] = self.requests.__getitem__
        """Returns the content of a remembered request, by its number."""
        self._tokens: list[Sequence[Any]] = []
        self._num_rewritten = 0
        """Bytes of the newest file that were written again, which do not count for its size."""
        self._replaced: list[int] = []
        """Files whose content was written again."""
        self._retired: list[int] = []
        """Descriptors of complete files, which the thread closes."""
        self._lock = threading.Lock()
        self._dirty, self._new_files, self._closing = threading.Event(), threading.Event(), threading.Event()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_file = lock_folder(folder)
            self._read()
        except OSError as error:
            raise ConfigurationError(f"--journal {folder}: {error.strerror}") from error
        self._next_number = max(self._first_segments, default=0) + 1
        self._descriptor = -1
        try:
            self._descriptor = self._begin_segment(max(self._sizes, default=0) + 1)
        except OSError as error:
            self._fail(error)
        self._thread = threading.Thread(target=self._sync, name="journal", daemon=True)
        self._thread.start()

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
        self._write(records.encode(records.accepted(number, request)))
        return number

    def note(self, number: int, output: Token) -> None:
        """Record a token; `flush` writes it."""
        self._tokens.append(records.token(number, output))

    def flush(self) -> None:
        """Write the recorded tokens. Call before a client receives one of them."""
        if self._tokens:
            tokens, self._tokens = self._tokens, []
            self._write(records.encode(["tokens", *tokens]))

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
        self._closing.set()
        self._dirty.set()
        self._thread.join(JOIN_SECONDS)
        if not self._first_segments:  # no prompt stays behind
            self._delete_all()
        self.failure = self.failure or "closed"
        os.close(self._lock_file)

    # -- files ---------------------------------------------------------------------------------------

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:08d}.journal"

    def _read(self) -> None:
        """Read all files. What follows a damaged line in a file, usually the last line before a power cut, is lost."""
        damaged: set[int] = set()
        for path in sorted(path for path in self._folder.iterdir() if SEGMENT_NAME.fullmatch(path.name)):
            segment = int(path.stem)
            self._sizes[segment] = path.stat().st_size
            known = set(self.requests)
            with path.open("rb") as file:
                try:
                    if file.readline() != self._header:
                        logger.warning("%s: ignored: it is for another model or of another version", path)
                        continue
                    for line in file:
                        records.replay(records.decode(line), self.requests, damaged)
                except (RecordError, ValueError) as error:
                    logger.warning("%s: the rest of the file is ignored: %s", path, error)
                    damaged |= self.requests.keys()
            for number in set(self.requests) - known:
                self._begins(number, segment)
        self._unfinished = {number for number, whole in self.requests.items() if whole.ended is None}

    def _begins(self, number: int, segment: int | None = None) -> None:
        """Note that a request begins in a file, by default the newest."""
        self._first_segments[number] = segment = max(self._sizes) if segment is None else segment
        self._num_beginnings[segment] += 1

    def _delete_unneeded(self) -> None:
        if not self._first_segments and self._sizes[max(self._sizes)] > len(self._header):
            self._rotate()
        if self.failure and not self._unfinished:  # the ends of all requests that the files have could not be written
            self._delete_all()
        for segment in list(self._sizes)[:-1]:
            if self._num_beginnings[segment]:
                break
            del self._num_beginnings[segment], self._sizes[segment]
            self._delete(segment)

    def _delete_all(self) -> None:
        for segment in self._sizes:
            self._delete(segment)
            self._sizes[segment] = 0

    def _delete(self, segment: int) -> None:
        with contextlib.suppress(OSError):  # a disk that has become read-only
            self._path(segment).unlink()

    def _rotate(self) -> None:
        """Begin a new file; beyond COMPACT_BYTES write the oldest file's requests again, and delete the oldest file."""
        pending, self._tokens = self._tokens, []
        if pending:  # they are part of the content that is written again
            self._append(records.encode(["tokens", *pending]))
        if self.failure:
            return
        try:
            descriptor = self._begin_segment(max(self._sizes) + 1)
        except OSError as error:
            self._fail(error)
            return
        self._num_rewritten = 0
        with self._lock:
            self._retired.append(self._descriptor)
            self._descriptor = descriptor
        if self.num_bytes < COMPACT_BYTES or len(self._sizes) < 3:  # the newest request may not be remembered yet
            return
        oldest = min(self._sizes)
        numbers = [number for number, segment in self._first_segments.items() if segment == oldest]
        for number in numbers:
            self._append(records.encode(records.request(number, self.content_of(number))))
        if self.failure:
            return
        for number in numbers:
            self._begins(number)
        with self._lock:
            del self._num_beginnings[oldest], self._sizes[oldest]
            self._replaced.append(oldest)  # deleted by the thread, after fsync of the new file
        self._num_rewritten = self._sizes[max(self._sizes)]

    def _begin_segment(self, segment: int) -> int:
        self._sizes[segment] = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        descriptor = os.open(self._path(segment), flags, 0o600)
        try:
            self._append(self._header, descriptor)
        except OSError:
            os.close(descriptor)
            raise
        self._new_files.set()
        return descriptor

    def _write(self, line: bytes) -> None:
        self._append(line)
        if self._sizes[max(self._sizes)] - self._num_rewritten >= SEGMENT_BYTES:
            self._rotate()

    def _append(self, line: bytes, descriptor: int | None = None) -> None:
        """Append a line to the newest file; `descriptor`: of a file that has just begun, whose errors are raised."""
        if self.failure:
            return
        try:
            if descriptor is None and self.num_bytes + len(line) > self._max_bytes:
                raise OSError(0, f"its files would exceed {self._max_bytes} bytes")
            written = os.write(self._descriptor if descriptor is None else descriptor, line)
            self._sizes[max(self._sizes)] += written
            if written < len(line):
                raise OSError(0, f"no space left: {written} of {len(line)} bytes were written")
        except OSError as error:
            if descriptor is not None:
                raise
            self._fail(error)
        self._dirty.set()

    def _fail(self, error: OSError) -> None:
        self.failure = str(error.strerror)
        logger.error("--journal %s: %s: the journal is off, serving goes on", self._folder, self.failure)

    def _sync(self) -> None:
        closing = False
        while not closing:
            self._dirty.wait()
            self._dirty.clear()
            closing = self._closing.is_set()
            with self._lock:
                retired, self._retired = self._retired, []
                replaced, self._replaced = self._replaced, []
                current = self._descriptor
            try:
                for descriptor in (*retired, current):
                    if descriptor >= 0:
                        os.fsync(descriptor)
                if self._new_files.is_set():
                    self._new_files.clear()
                    self._sync_folder()
                for segment in replaced:
                    self._delete(segment)
            except OSError as error:
                if not self.failure:
                    self._fail(error)
            for descriptor in retired:
                if descriptor >= 0:
                    os.close(descriptor)
            self._closing.wait(SYNC_SECONDS)
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def _sync_folder(self) -> None:
        """Make the names of new files survive the death of the machine."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
