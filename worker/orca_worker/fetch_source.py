"""What `orca fetch` needs of a place with models: the list of its files, and the download of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class FetchError(Exception):
    """A download failed; the message has the reason and, if the user can fix it, the setting to change."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`size` in bytes; `identity` changes with the content, None if the source publishes nothing of this kind."""

    name: str
    size: int
    identity: str | None


class Source(Protocol):
    """A folder of files at another place. Methods raise FetchError, OSError for the local disk or the network."""

    @property
    def uri(self) -> str:
        """The URI, for messages."""

    def list(self) -> Mapping[str, RemoteFile]:
        """Return the files by name."""

    def download(self, file: RemoteFile, path: Path) -> None:
        """Write one file to `path`, which exists only if the file is complete, and verified if that is possible.

        An interrupted download goes on where it stopped, if the file is large.
        """
