"""API keys, stored as SHA-256 digests, from options, the environment and a file that is reloaded when it changes.

Digests without salt suffice, because keys are random. The server's memory and its link to API processes contain
no keys.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
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
_DESCRIPTOR = re.compile(r"/dev/stdin|(/dev|/proc/self)/fd/[0-9]+", re.ASCII)
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)


def digest(key: str) -> str:
    """Return the SHA-256 of a key, in hexadecimal digits."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def digests_of(keys: Iterable[str], source: str) -> frozenset[str]:
    """Return the digests of keys, each given as a key or as `sha256:DIGEST`; raise ConfigurationError."""
    digests = set()
    for key in keys:
        if not key.strip():
            raise ConfigurationError(f"{source}: a key is empty")
        if key.startswith(PREFIX) and not _HEXADECIMAL.fullmatch(key, len(PREFIX)):
            raise ConfigurationError(f"{source}: {PREFIX} is not followed by 64 hexadecimal digits")
        digests.add(key[len(PREFIX) :].lower() if key.startswith(PREFIX) else digest(key))
    return frozenset(digests)


def open_regular(path: str, flags: int) -> int:
    """Open a regular file without blocking (an `opener` for `open`); raise OSError for other files, such as pipes."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return descriptor


def read_key_file(path: Path, opener: Callable[[str, int], int] | None = None) -> frozenset[str]:
    """Return the digests of the keys in a file, one per line; raise ConfigurationError, whose text has no keys."""
    source = f"--api-key-file {path}"
    try:
        with open(path, "rb", opener=opener) as file:
            content = file.read(MAX_FILE_BYTES + 1)
        lines = [line.strip() for line in content.decode("utf-8-sig").split("\n")]
    except OSError as error:
        raise ConfigurationError(f"{source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{source}: it is not UTF-8") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigurationError(f"{source}: it exceeds {MAX_FILE_BYTES} bytes")
    for number, line in enumerate(lines, 1):
        # Each word as a key of its own would open the server to whoever knows a word of a passphrase or comment.
        if len(line.split()) > 1:
            raise ConfigurationError(f"{source}: line {number} contains blanks, but each line is one key")
    keys = [line for line in lines if line]
    if not keys:
        raise ConfigurationError(f"{source}: the file contains no key")
    return digests_of(keys, source)


def lasting_path(path: Path) -> Path | None:
    """Return the path at which a key file can be read again after changes, None for a pipe or a file without a name.

    The path of a descriptor leads to the file that was opened, also after another file has got its name.
    """
    if not path.is_file():
        return None
    if not _DESCRIPTOR.fullmatch(str(path)):
        return path
    named = path.resolve()
    return named if os.path.isfile(named) and os.path.samefile(named, path) else None


class KeyRing:
    """The valid keys: `digests`, and the digests in the file at `path`, which is read at once.

    While the file is unreadable or contains no key, the keys that this KeyRing has read before stay valid. A restarted
    process has read none: keys that an earlier process knew may have been removed since.
    """

    def __init__(
        self,
        digests: frozenset[str],
        path: Path | None,
        reload_seconds: float = RELOAD_SECONDS,
    ) -> None:
        self._digests = digests
        self._path = path
        self._reload_seconds = reload_seconds
        self._from_file: frozenset[str] = frozenset()
        self._version: tuple[int, ...] | None = None
        self._logged_error = ""
        self._checked = float("-inf")
        self._reload_file()

    def accepts(self, key: str) -> bool:
        """Return True if a key is valid.

        Keys are looked up by their digests: the time of a lookup can tell something about the digest of the presented
        key, from which nobody can approach a valid key, because SHA-256 cannot be inverted. No key itself is compared.
        """
        return self.has(digest(key))

    def has(self, key_digest: str) -> bool:
        """Return True if the key with this digest is valid."""
        self._reload_file()
        return key_digest in self._digests or key_digest in self._from_file

    def _reload_file(self) -> None:
        """Read the file again if it has changed; check at most every `reload_seconds`."""
        now = time.monotonic()
        if self._path is None or now - self._checked < self._reload_seconds:
            return
        self._checked = now
        try:
            # Follows symbolic links: Kubernetes updates a mounted Secret by replacing a link.
            status = os.stat(self._path)
            version = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if version == self._version:
                return
            self._from_file = read_key_file(self._path, open_regular)
        except OSError as error:
            self._log_error(f"--api-key-file {self._path}: {error.strerror}")
        except ConfigurationError as error:
            self._log_error(str(error))
        else:
            if self._version is not None or self._logged_error:
                logger.info("--api-key-file %s: reloaded, %d keys", self._path, len(self._from_file))
            self._version, self._logged_error = version, ""

    def _log_error(self, error: str) -> None:
        if error != self._logged_error:
            self._logged_error = error
            valid = "the previously read keys stay valid" if self._from_file else "no key of the file is valid"
            logger.error("%s; %s", error, valid)
