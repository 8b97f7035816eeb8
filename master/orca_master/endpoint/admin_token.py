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
    """The token in `path`. Raises ConfigurationError if the file has none at the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._token = path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigurationError(f"--admin-token-file {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"--admin-token-file {path}: it is not UTF-8") from error
        if not self._token:
            raise ConfigurationError(f"--admin-token-file {path}: it is empty")

    def matches(self, token: str) -> bool:
        """Whether a client's token is the one in the file. Blocks while the file is read."""
        self._read_again()
        return hmac.compare_digest(token.encode(), self._token.encode())

    def _read_again(self) -> None:
        """Take a new token from the file. A file without a token changes nothing."""
        try:
            token = self._path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return
        if token and token != self._token:
            logger.info("--admin-token-file %s: the token was replaced", self._path)
            self._token = token
