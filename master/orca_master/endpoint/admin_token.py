"""`AdminToken`: the bearer token of the admin port, from a file that may change while the master runs.

On a cluster the file is a mounted Secret: if it is deleted and created again, the kubelet replaces the file.
"""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

from orca_master.errors import ConfigurationError

logger = logging.getLogger(__name__)


class AdminToken:
    """The token in `path`. Raises ConfigurationError if the file has no usable one at the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = read_token(path)

    def matches(self, token: str) -> bool:
        """Whether a client's token is the one in the file. Blocks while the file is read."""
        self._read_again()
        return hmac.compare_digest(token.encode(errors="replace"), self._token.encode())

    def _read_again(self) -> None:
        """Take a new token from the file. A file without a usable token changes nothing."""
        try:
            token = read_token(self._path)
        except ConfigurationError:
            return
        if token != self._token:
            logger.info("--admin-token-file %s: the token was replaced", self._path)
            self._token = token


def read_token(path: Path) -> str:
    """Return the token of a file; raise ConfigurationError for a file without one that an HTTP header can carry."""
    try:
        token = path.read_text(encoding="utf-8").strip()
        if not token:
            raise ValueError("it is empty")
        if not all(" " <= character <= "~" for character in token):
            raise ValueError("it may only have visible ASCII characters and spaces")
    except OSError as error:
        raise ConfigurationError(f"--admin-token-file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--admin-token-file {path}: it is not UTF-8") from error
    except ValueError as error:
        raise ConfigurationError(f"--admin-token-file {path}: {error}") from error
    return token
