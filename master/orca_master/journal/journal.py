"""`Journal`: an append-only log of accepted requests and their tokens, in files of one folder.

A line is written to the kernel before a client receives what it records, so that the death of the process loses
nothing; a thread calls fsync(2) in batches, so that the death of the machine loses SYNC_SECONDS. A file is deleted as
soon as all requests in it and in earlier files are forgotten. When writing fails, the journal is off until the next
start, and serving goes on. Files contain prompts: only their owner may read them.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orca_master.errors import ConfigurationError
from orca_master.journal import records
from orca_master.journal.records import Accepted, Ended, JournalledRequest, RecordError, Token

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 8 << 20
"""Size after which a new file begins."""
MAX_BYTES = 256 << 20
"""Maximum size of all files: the journal is off beyond it."""
SYNC_SECONDS = 0.1
LOCK_SECONDS = 5.0
"""Longest wait for the end of an earlier master that has the folder."""
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
        self._model = model
        self._max_bytes = max_bytes
        self._sizes: dict[int, int] = {}
        """Size of each file in bytes, by its number in ascending order."""
        self._first_segments: dict[int, int] = {}
        """Number of the file in which each remembered request begins."""
        self._tokens: list[Sequence[Any]] = []
        self._retired: list[int] = []
        """Descriptors of complete files, which the thread closes."""
        self._lock = threading.Lock()
        self._dirty = threading.Event()
        self._closing = threading.Event()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_file = self._take_folder()
            self._read()
            self._descriptor = self._begin_segment(max(self._sizes, default=0) + 1)
            self._delete_unneeded()
        except OSError as error:
            raise ConfigurationError(f"--journal {folder}: {error.strerror}") from error
        self._next_number = max(self._first_segments, default=0) + 1
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
        self._first_segments[number] = max(self._sizes)
        self._write(records.encode(records.accepted(number, request)))
        return number

    def note(
        self, number: int, choice: int, token: int, finish_reason: str | None = None, logprobs: bytes | None = None
    ) -> None:
        """Record a token (see records.Token); `flush` writes it. Hot path."""
        if finish_reason is None and logprobs is None:
            self._tokens.append((number, choice, token))
        else:
            self._tokens.append(records.token(number, Token(choice, token, finish_reason, logprobs)))

    def flush(self) -> None:
        """Write the recorded tokens. Call before a client receives one of them."""
        if self._tokens:
            tokens, self._tokens = self._tokens, []
            self._write(records.encode(["tokens", *tokens]))

    def end(self, number: int, end: Ended) -> None:
        """Write the end of a request."""
        self.flush()
        self._write(records.encode(records.ended(number, end)))

    def resume(self, numbers: Sequence[int]) -> None:
        """Write that requests of an earlier master are continued."""
        self._write(records.encode(["resumed", *numbers]))

    def forget(self, number: int) -> None:
        """Forget a request, and delete the files that only have forgotten requests."""
        self._first_segments.pop(number, None)
        self.requests.pop(number, None)
        self._delete_unneeded()

    def close(self) -> None:
        """Write and sync what is left."""
        self.flush()
        self._closing.set()
        self._dirty.set()
        self._thread.join(JOIN_SECONDS)
        os.close(self._lock_file)

    # -- files ---------------------------------------------------------------------------------------

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:08d}.journal"

    def _take_folder(self) -> int:
        """Lock the folder; the kernel releases the lock when the process ends."""
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    raise ConfigurationError(f"--journal {self._folder}: another master uses this folder") from None
                time.sleep(0.1)
            else:
                return descriptor

    def _read(self) -> None:
        """Read all files. What follows a damaged line in a file, usually the last line of a killed master, is lost."""
        for path in sorted(self._folder.glob("[0-9]*.journal")):
            segment = int(path.stem)
            self._sizes[segment] = path.stat().st_size
            known = set(self.requests)
            with path.open("rb") as file:
                try:
                    if records.decode(file.readline()) != records.header(self._model):
                        logger.warning("%s: ignored: it is for another model or of another version", path)
                        continue
                    for line in file:
                        records.replay(records.decode(line), self.requests)
                except (RecordError, ValueError) as error:
                    logger.warning("%s: the rest of the file is ignored: %s", path, error)
            self._first_segments |= dict.fromkeys(set(self.requests) - known, segment)

    def _delete_unneeded(self) -> None:
        oldest_needed = min(self._first_segments.values(), default=max(self._sizes))
        for segment in [segment for segment in self._sizes if segment < oldest_needed]:
            del self._sizes[segment]
            self._path(segment).unlink(missing_ok=True)

    def _begin_segment(self, segment: int) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        descriptor = os.open(self._path(segment), flags, 0o600)
        self._sizes[segment] = os.write(descriptor, records.encode(records.header(self._model)))
        return descriptor

    def _write(self, line: bytes) -> None:
        if self.failure:
            return
        try:
            if self.num_bytes + len(line) > self._max_bytes:
                raise OSError(0, f"its files have {self._max_bytes} bytes, the limit")
            segment = max(self._sizes)
            if self._sizes[segment] >= SEGMENT_BYTES:
                segment, descriptor = segment + 1, self._begin_segment(segment + 1)
                with self._lock:
                    self._retired.append(self._descriptor)
                    self._descriptor = descriptor
            written = os.write(self._descriptor, line)
            self._sizes[segment] += written
            if written < len(line):
                raise OSError(0, f"{written} of {len(line)} bytes were written")
        except OSError as error:
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
                current = self._descriptor
            try:
                for descriptor in (*retired, current):
                    os.fsync(descriptor)
            except OSError as error:
                if not self.failure:
                    self._fail(error)
            for descriptor in retired:
                os.close(descriptor)
            self._closing.wait(SYNC_SECONDS)
        os.close(self._descriptor)
