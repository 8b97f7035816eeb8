"""s3:// models: downloads from a bucket of S3 or of a server with its protocol, by obstore (Rust's object_store).

Credentials are those of the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), or the pod's
identity (AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_CREDENTIALS_FULL_URI, or the machine's). AWS_ENDPOINT_URL names
another server than AWS, AWS_REGION the region.

S3 publishes no digest that is the same for every upload. A file is complete if it has the listed size, and all its
pieces have the listed ETag: S3 answers 412 for a piece of another version.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import S3Store

from orca_worker.fetch_source import POOLING, TEMPLATES, FetchError, RemoteFile

PIECE_BYTES = 16 << 20
"""Size of a request: a connection that breaks repeats at most one per thread."""
THREADS = 4
TIMEOUT = "120s"
"""Timeout of one piece, after which obstore tries again."""
CAUSE = re.compile(r'\b(?:message|error): ("[^"]*"|\w+\(\s*\w+)')
"""A cause in the second part of obstore's messages, the last of which is the innermost one."""


class Bucket:
    """The objects of a bucket below a prefix, without those of deeper folders but TEMPLATES and POOLING."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._uri = f"s3://{bucket}/{prefix}".rstrip("/")
        with self._errors():
            self._store = S3Store(
                bucket, prefix=prefix or None, client_options={"allow_http": True, "timeout": TIMEOUT}
            )

    @property
    def uri(self) -> str:
        """The URI, for messages."""
        return self._uri

    def list(self) -> dict[str, RemoteFile]:
        """Return the objects."""
        with self._errors():
            folders = [obstore.list_with_delimiter(self._store, prefix) for prefix in (None, TEMPLATES, POOLING)]
        objects = [each for folder in folders for each in folder["objects"]]
        return {
            each["path"]: RemoteFile(each["path"], each["size"], each["e_tag"], each["last_modified"].isoformat())
            for each in objects
        }

    def download(self, file: RemoteFile, path: Path, begin: Callable[[], None]) -> None:
        """Download one object in pieces, those that an earlier process has not downloaded. `begin`: see Source."""
        version = hashlib.sha256(str(file.identity).encode()).hexdigest()[:16]
        partial = path.with_name(f"{path.name}.{version}.incomplete")
        for other in set(path.parent.glob(f"{path.name}.*.incomplete")) - {partial}:
            other.unlink()
        with partial.open("ab") as out, ThreadPoolExecutor(THREADS) as pool:
            starts = iter(range(out.tell(), file.size, PIECE_BYTES))
            while window := list(islice(starts, THREADS)):
                for piece in pool.map(lambda start: self._piece(file, start), window):
                    out.write(piece)
        if partial.stat().st_size != file.size:
            size = partial.stat().st_size
            partial.unlink()
            raise FetchError(f"{self.uri}/{file.name}: {size} bytes instead of {file.size}")
        begin()
        os.replace(partial, path)

    def _piece(self, file: RemoteFile, start: int) -> bytes:
        """Return the bytes of a file from `start` to the end of the piece."""
        end = min(start + PIECE_BYTES, file.size)
        with self._errors():
            answer = obstore.get(self._store, file.name, options={"range": (start, end), "if_match": file.identity})
            return bytes(answer.bytes())

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert the errors of obstore.

        Their messages have a second part for debugging. Only this part has the cause of a connection
        that fails, such as an InvalidCertificate of an UnknownIssuer.
        """
        try:
            yield
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise FetchError(f"{self.uri}: access denied: see model.secretRef, or the pod's identity") from error
        except PreconditionError as error:
            raise FetchError(f"{self.uri} changed during the download: start again") from error
        except (BaseError, FileNotFoundError, ValueError) as error:
            message, _, details = str(error).partition("Debug source:")
            causes = [" ".join(re.findall(r"\w+", cause)) for cause in CAUSE.findall(details)]
            raise FetchError(": ".join([self.uri, " ".join(message.split()), *causes[-1:]])) from error
