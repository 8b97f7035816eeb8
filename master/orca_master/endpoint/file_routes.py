"""The routes of /v1/files: the input and the answers of batches, of the same API key."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from operator import attrgetter
from typing import IO, Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from orca_master.batches.disk_threads import DiskThreads
from orca_master.batches.records import FileRecord
from orca_master.batches.service import OPTION, Batches
from orca_master.batches.upload import FileTooLargeError, Upload
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.form_parts import FormParts
from orca_master.endpoint.listing import page_of
from orca_master.endpoint.middleware import owner_of
from orca_master.errors import QueueFullError, RequestError

logger = logging.getLogger(__name__)

MOST_UPLOADS = 32
MOST_UPLOADS_OF_A_KEY = 4
"""At a time."""
MOST_LISTED = 10_000
MOST_FILENAME = 255
WRITTEN_BYTES = 1 << 20
"""Bytes that are written or read together."""
FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "file": {"type": "string", "format": "binary"},
                    },
                    "required": ["purpose", "file"],
                }
            }
        },
    }
}
"""For /openapi.json: FastAPI does not read the body."""


def batches_of(endpoint: Endpoint) -> Batches:
    """Return the files and batches; raise HTTPException 404 if the server keeps none, 503 if its folder fails."""
    if endpoint.batches is None and endpoint.config.batches is not None:
        raise HTTPException(503, f"the folder of {OPTION} cannot be used: the server's log has the cause")
    if endpoint.batches is None:
        raise HTTPException(404, f"this server keeps no files and batches: start it with {OPTION} DIR")
    return endpoint.batches


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Raise HTTPException 503 for an error of the disk, which the log has, too."""
    try:
        yield
    except OSError as error:
        logger.error("%s: %s", OPTION, error)
        raise HTTPException(503, f"the server's disk: {error.strerror}: nothing was stored, try again later") from error


def add_files(app: FastAPI, endpoint: Endpoint) -> None:
    """Add the routes."""
    uploads: Counter[str] = Counter()

    def find(file_id: str, request: Request) -> FileRecord:
        record = batches_of(endpoint).files.get(owner_of(request), file_id)
        if record is None:
            raise HTTPException(404, f"there is no file {file_id[:80]!a}: it was deleted, or another API key made it")
        return record

    def described(record: FileRecord) -> dict[str, Any]:
        return record.wire(batches_of(endpoint).config.seconds)

    @app.post("/v1/files", openapi_extra=FORM)
    async def create_file(request: Request) -> Response:
        """Store a file of requests, one per line."""
        batches, owner = batches_of(endpoint), owner_of(request)
        if uploads[owner] >= MOST_UPLOADS_OF_A_KEY:
            raise QueueFullError(f"{uploads[owner]} files are being uploaded, the limit is {MOST_UPLOADS_OF_A_KEY}")
        if uploads.total() >= MOST_UPLOADS:
            raise QueueFullError(f"{MOST_UPLOADS} files are being uploaded, that is the limit of all API keys")
        uploads[owner] += 1
        try:
            with disk_errors(), batches.files.promised(owner, 1):
                async with Upload(batches.files, owner) as upload:
                    return JSONResponse(described(await _receive(request, upload)))
        except FileTooLargeError as error:
            raise HTTPException(413, str(error)) from error
        except ClientDisconnect:
            return Response(status_code=400)
        finally:
            uploads[owner] -= 1
            if not uploads[owner]:
                del uploads[owner]

    @app.get("/v1/files")
    async def list_files(
        request: Request,
        purpose: Annotated[str, Query(max_length=64)] | None = None,
        after: Annotated[str, Query(max_length=64)] | None = None,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = MOST_LISTED,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """List files, the latest first."""
        files = [
            record
            for record in batches_of(endpoint).files.of(owner_of(request))
            if purpose is None or record.purpose == purpose
        ]
        ordered = files if order == "desc" else files[::-1]
        return JSONResponse(page_of(ordered, attrgetter("id"), described, after, limit))

    @app.get("/v1/files/{file_id}")
    async def retrieve_file(file_id: str, request: Request) -> Response:
        """Describe a file."""
        return JSONResponse(described(find(file_id, request)))

    @app.get("/v1/files/{file_id}/content")
    async def file_content(file_id: str, request: Request) -> Response:
        """Return the content of a file, as it is when it is opened."""
        record, files = find(file_id, request), batches_of(endpoint).files
        with disk_errors():
            file = await files.threads.run(files.path(record.id).open, "rb")
        size = os.fstat(file.fileno()).st_size
        parts, headers = parts_of(file, size, files.threads), {"content-length": str(size)}
        return StreamingResponse(parts, headers=headers, media_type="application/octet-stream")

    @app.delete("/v1/files/{file_id}")
    async def delete_file(file_id: str, request: Request) -> Response:
        """Delete a file that no unfinished batch uses."""
        record, batches = find(file_id, request), batches_of(endpoint)
        if record.id in batches.batches.used_files:
            raise RequestError("file_id: an unfinished batch uses this file: cancel the batch first", "file_id")
        with disk_errors():
            await batches.files.delete(record)
        return JSONResponse({"id": record.id, "object": "file", "deleted": True})


async def parts_of(file: IO[bytes], size: int, threads: DiskThreads) -> AsyncIterator[bytes]:
    """Yield the content of a file, and end with its last byte, without a read that returns nothing.

    The client has the whole response then, and a long request that it sends during such a read would seem pipelined.
    """
    with file:
        while size > 0 and (part := await threads.run(file.read, WRITTEN_BYTES)):
            size -= len(part)
            yield part


async def _receive(request: Request, upload: Upload) -> FileRecord:
    """Write the file of a form to the disk as it comes; raise RequestError, and HTTPException for a long body."""
    form = FormParts(request.headers.get("content-type", ""))
    purpose, filename = bytearray(), ""
    seen: set[str] = set()
    pending = bytearray()
    async for chunk in request.stream():
        for part in form.feed(chunk):
            if part.name not in ("purpose", "file"):
                raise RequestError(f"{part.name[:64]}: this field is unknown or not supported", part.name[:64])
            if part.is_first and part.name in seen:
                raise RequestError(f"{part.name}: the body has this field twice", part.name)
            seen.add(part.name)
            if part.name == "purpose":
                purpose += part.data
                _check_purpose(purpose, part.is_first)
            else:
                filename = part.filename
                pending += part.data
        if len(pending) >= WRITTEN_BYTES:
            await upload.write(bytes(pending))
            pending.clear()
    form.end()
    for name in ("purpose", "file"):
        if name not in seen:
            raise RequestError(f"{name}: this field of the form is missing", name)
    if purpose != b"batch":
        raise _wrong_purpose()
    await upload.write(bytes(pending))
    return await upload.finish(filename[:MOST_FILENAME] or "requests.jsonl")


def _check_purpose(purpose: bytearray, is_first: bool) -> None:
    """Raise RequestError early, before the rest of the body is read."""
    if not is_first and not b"batch".startswith(purpose):
        raise _wrong_purpose()


def _wrong_purpose() -> RequestError:
    return RequestError('purpose: "batch" is expected', "purpose")
