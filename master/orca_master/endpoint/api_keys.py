"""API keys: as SHA-256 digests alone, from options, the environment and a file that may change while the server runs.

A digest without salt suffices for keys, which are random. The server's memory and its link to API processes then hold
nothing that a client could present as a key.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from orca_master.errors import ConfigurationError

logger = logging.getLogger(__name__)

ENVIRONMENT = "ORCA_API_KEY"
PREFIX = "sha256:"
MAX_FILE_BYTES = 1 << 20
RELOAD_SECONDS = 5.0
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)


def digest(key: str) -> str:
    """Return the SHA-256 of a key, in hexadecimal digits."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def digests_of(keys: Iterable[str], source: str) -> frozenset[str]:
    """Return the digests of keys, of which some may be `sha256:` and a digest; raise ConfigurationError."""
    found = set()
    for key in keys:
        if not key.strip():
            raise ConfigurationError(f"{source}: a key is empty")
        if key.startswith(PREFIX) and not _HEXADECIMAL.fullmatch(key, len(PREFIX)):
            raise ConfigurationError(f"{source}: {PREFIX} is not followed by 64 hexadecimal digits")
        found.add(key[len(PREFIX) :].lower() if key.startswith(PREFIX) else digest(key))
    return frozenset(found)


def open_regular(path: str, flags: int) -> int:
    """Return an `opener` (see `open`) that waits for no pipe's writer; raise OSError for all but regular files."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return descriptor


def read_key_file(path: Path, opener: Callable[[str, int], int] | None = None) -> frozenset[str]:
    """Return the digests of the keys in a file, one per line; raise ConfigurationError."""
    source = f"--api-key-file {path}"
    try:
        with open(path, "rb", opener=opener) as file:
            content = file.read(MAX_FILE_BYTES + 1)
        keys = content.decode().split()
    except OSError as error:
        raise ConfigurationError(f"{source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{source}: it is not UTF-8") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigurationError(f"{source}: it exceeds {MAX_FILE_BYTES} bytes")
    if not keys:
        raise ConfigurationError(f"{source}: there is no key in it")
    return digests_of(keys, source)


class KeyRing:
    """The keys that are valid now: `digests`, and those of the file at `path`, which are `from_file` at first.

    While the file is unreadable or holds no key, the keys read from it before stay valid.
    """

    def __init__(
        self,
        digests: frozenset[str],
        path: Path | None,
        from_file: frozenset[str] = frozenset(),
        reload_seconds: float = RELOAD_SECONDS,
    ) -> None:
        self._digests = digests
        self._path = path
        self._reload_seconds = reload_seconds
        self._from_file = from_file
        self._version: tuple[int, ...] | None = None
        self._complaint = ""
        self._checked = float("-inf")

    def accepts(self, key: str) -> bool:
        """Whether a key is valid. Every digest is compared, in constant time, so that the time tells nothing."""
        self._follow_file()
        given = digest(key)
        matches = [secrets.compare_digest(given, known) for known in self._digests | self._from_file]
        return any(matches)

    def _follow_file(self) -> None:
        """Read the file again if it has changed; look every few seconds at the most."""
        now = time.monotonic()
        if self._path is None or now - self._checked < self._reload_seconds:
            return
        self._checked = now
        try:
            # Of the file behind a symbolic link: Kubernetes replaces the link of a mounted Secret.
            status = os.stat(self._path)
            version = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if version == self._version:
                return
            self._from_file = read_key_file(self._path, open_regular)
        except OSError as error:
            self._complain(f"--api-key-file {self._path}: {error.strerror}")
        except ConfigurationError as error:
            self._complain(str(error))
        else:
            if self._version is not None:
                logger.info("--api-key-file %s: read again, %d keys", self._path, len(self._from_file))
            self._version, self._complaint = version, ""

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            logger.error("%s; the keys read before stay valid", complaint)
