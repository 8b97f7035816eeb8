"""What `orca fetch` needs of a place with models: the list of its files, and the download of one."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

TEMPLATES = "additional_chat_templates"
"""Folder of a model with further chat templates, where transformers saves them."""
POOLING = "1_Pooling"
"""Folder of a model of embeddings with the pooling, where sentence-transformers saves it."""
QUERY = re.compile(r"""(https?://[^\s?'"]*)\?[^\s'"]*""")


def without_queries(text: str) -> str:
    """Return a message without the queries of its URLs, which hold the signatures of redirects."""
    return QUERY.sub(r"\1", text)


def redact(record: logging.LogRecord) -> bool:
    """Filter of a logger that removes the queries of URLs."""
    record.msg, record.args = without_queries(record.getMessage()), None
    return True


class FetchError(Exception):
    """A download failed; the message has the reason and, if the user can fix it, the setting to change."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`size` in bytes; `identity` changes with the content, None if the source publishes nothing of this kind.

    `version` changes at least when the content does: a commit, or the time of the last change.
    """

    name: str
    size: int
    identity: str | None
    version: str = ""


class Source(Protocol):
    """A folder of files at another place. Methods raise FetchError, OSError for the local disk or the network."""

    @property
    def uri(self) -> str:
        """The URI, for messages."""

    def list(self) -> Mapping[str, RemoteFile]:
        """Return the files by name."""

    def download(self, file: RemoteFile, path: Path, begin: Callable[[], None]) -> None:
        """Write one file to `path`, which exists only if the file is complete, and verified if that is possible.

        `begin` is called before `path` changes, which is after the download. An interrupted download of a large file
        goes on where it stopped.
        """
