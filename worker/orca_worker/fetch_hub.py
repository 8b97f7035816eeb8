"""hf:// models: downloads from a hub, and verification against the digests that the hub publishes.

The digest is SHA-256 for large files (LFS), and Git's blob id for others.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (  # type: ignore[attr-defined]
    GatedRepoError,
    HFValidationError,
    HTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import build_hf_headers, validate_repo_id  # type: ignore[attr-defined]

from orca_worker.fetch_source import FetchError, RemoteFile, without_queries

logger = logging.getLogger(__name__)

TRIES = 3
PARTIAL = ".orca-partial"
"""Folder of small files until they are verified."""


class Hub:
    """One revision of a repository of a hub (HF_ENDPOINT, HF_TOKEN)."""

    def __init__(self, repository: str, revision: str) -> None:
        """Raise FetchError for a name that no repository can have."""
        self._repository = repository
        try:
            validate_repo_id(repository)
        except HFValidationError as error:
            raise FetchError(f"{self.uri!r}: {error}") from error
        self._revision = revision
        self._commit = revision
        self._siblings: dict[str, RepoSibling] = {}

    @property
    def uri(self) -> str:
        """The URI, for messages."""
        return f"hf://{self._repository}"

    def list(self) -> dict[str, RemoteFile]:
        """Return the files of the revision, whose commit later downloads use."""
        with self._errors():
            info = HfApi().model_info(self._repository, revision=self._revision, files_metadata=True)
        self._commit = info.sha or self._revision
        self._siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
        return {
            name: RemoteFile(name, sibling.size or 0, _digest(sibling), self._commit)
            for name, sibling in self._siblings.items()
        }

    def download(self, file: RemoteFile, path: Path, begin: Callable[[], None]) -> None:
        """Download one file, again if its digest is wrong. `begin`: see Source."""
        is_large = self._siblings[file.name].lfs is not None
        folder = path.parents[file.name.count("/")] / PARTIAL
        for attempt in range(1, TRIES + 1):
            with self._errors():
                if is_large:
                    partial = _resumed(hf_hub_url(self._repository, file.name, revision=self._commit), path)
                else:
                    partial = Path(
                        hf_hub_download(
                            self._repository, file.name, revision=self._commit, local_dir=folder, force_download=True
                        )
                    )
            if file.identity is None or file.identity == (_sha256(partial) if is_large else _git_blob(partial)):
                begin()
                os.replace(partial, path)
                return
            logger.warning("%s: wrong digest after attempt %d of %d", file.name, attempt, TRIES)
            partial.unlink()
        kind = "SHA-256" if is_large else "Git blob id"
        raise FetchError(f"{file.name}: {kind} differs from the published one after {TRIES} downloads")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert the hub's errors."""
        try:
            yield
        except GatedRepoError as error:
            raise FetchError(f"{self.uri} is gated: accept its terms and set model.secretRef") from error
        except RepositoryNotFoundError as error:
            raise FetchError(f"{self.uri} does not exist, or needs a token: see model.secretRef") from error
        except RevisionNotFoundError as error:
            raise FetchError(f"{self.uri} has no revision {self._revision!r}: see model.revision") from error
        except (HTTPError, ValueError) as error:  # ValueError: http_get's limit of 50 GB, if its first answer breaks
            raise FetchError(f"{self.uri}: {without_queries(' '.join(str(error).split()))}") from error


def _digest(sibling: RepoSibling) -> str | None:
    """Return the published digest of a file in hexadecimal digits, None if there is none."""
    return (sibling.lfs.sha256 if sibling.lfs is not None else sibling.blob_id) or None


def _resumed(url: str, path: Path) -> Path:
    """Download a large file beside `path`, resuming an earlier process's download (hf_hub_download would start over).

    Return the path of the whole file.
    """
    metadata = get_hf_file_metadata(url)
    partial = path.with_name(f"{path.name}.incomplete")
    with partial.open("ab") as file:
        if metadata.size is not None and file.tell() > metadata.size:  # from another revision
            file.truncate(0)
            file.seek(0)  # resume_size, the position, stays else behind the end
        if metadata.size is None or file.tell() < metadata.size:
            http_get(  # without expected_size: http_get refuses files of an expected size above 50 GB
                metadata.location,
                file,
                resume_size=file.tell(),
                headers=build_hf_headers() if metadata.location == url else {},  # send the token to the hub only
                displayed_filename=path.name,
            )
        size = file.tell()
    if metadata.size is not None and size != metadata.size:
        raise FetchError(f"{path.name}: {size} bytes instead of {metadata.size}: start again")
    return partial


def _git_blob(path: Path) -> str:
    """Return Git's blob id of a file: SHA-1 over "blob", the length and the bytes."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
