"""`FileRecord` and `BatchRecord`: what is kept of a file and of a batch, and their form in OpenAI's API.

https://platform.openai.com/docs/api-reference/files/object, https://platform.openai.com/docs/api-reference/batch/object
"""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from orca_master.journal.records import AdapterFiles

FileId = Annotated[str, Field(pattern=r"^file-[0-9a-f]{32}$")]
BatchId = Annotated[str, Field(pattern=r"^batch_[0-9a-f]{32}$")]
Status = Literal["validating", "in_progress", "finalizing", "cancelling", "completed", "failed", "expired", "cancelled"]
TIMES = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)
"""Fields of the API."""
UNFINISHED = frozenset({"validating", "in_progress", "finalizing", "cancelling"})


def new_file_id() -> FileId:
    """Return the id of a new file."""
    return f"file-{_new_number()}"


def new_batch_id() -> BatchId:
    """Return the id of a new batch."""
    return f"batch_{_new_number()}"


def _new_number() -> str:
    """Return 64 bits of time and 64 random ones, so that ids of one second sort in the order of these calls."""
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A complete file. `owner`: digest of the API key that it belongs to; `num_lines`: those that are not blank."""

    id: FileId
    owner: str
    filename: str
    purpose: Literal["batch", "batch_output"]
    num_bytes: int
    num_lines: int
    created_at: int

    def wire(self, lifetime: float) -> dict[str, Any]:
        """Return the file object; `lifetime`: seconds after which files are deleted."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.num_bytes,
            "created_at": self.created_at,
            "expires_at": self.created_at + int(lifetime),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


@dataclass(slots=True)
class BatchRecord:
    """A batch. `output_id`, `error_id`: the files of its answers, from its creation on; clients see them at its end.

    `adapters`: by their names, those that its owner had loaded at run time when the batch was created, or a line of it
    was sent. `times`: when it entered a status, by the field of the API, in seconds since the epoch.
    """

    id: BatchId
    owner: str
    endpoint: str
    input_file_id: FileId
    total: int
    created_at: int
    expires_at: int
    output_id: FileId
    error_id: FileId
    metadata: dict[str, str] = field(default_factory=dict)
    adapters: dict[str, AdapterFiles] = field(default_factory=dict)
    status: Status = "validating"
    completed: int = 0
    failed: int = 0
    times: dict[str, int] = field(default_factory=dict)
    has_output: bool = False
    has_errors: bool = False
    failure: str = ""
    """Why the batch failed as a whole."""

    @property
    def is_unfinished(self) -> bool:
        """True until the batch has its final status."""
        return self.status in UNFINISHED

    @property
    def ended_at(self) -> int:
        """When the batch ended, in seconds since the epoch; 0 before its end."""
        return 0 if self.is_unfinished else self.times.get(f"{self.status}_at", self.created_at)

    def enter(self, status: Status) -> None:
        """Set the status and its time; a status that the batch has already keeps its first time."""
        self.status = status
        self.times.setdefault(f"{status}_at", int(time.time()))

    def fields(self) -> dict[str, Any]:
        """Return the fields, for the disk."""
        return asdict(self)

    def wire(self) -> dict[str, Any]:
        """Return the batch object."""
        error = {"code": "batch_failed", "message": self.failure, "param": None, "line": None}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": [error]} if self.failure else None,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_id if self.has_output else None,
            "error_file_id": self.error_id if self.has_errors else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{name: self.times.get(name) for name in TIMES},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.metadata or None,
        }


FILE_RECORDS = TypeAdapter(FileRecord)
BATCH_RECORDS = TypeAdapter(BatchRecord)
"""Check the fields of a record that is read."""
