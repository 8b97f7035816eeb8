"""Frames of the pipes to the processes of chat templates and grammars: 4 bytes of length, big-endian, and JSON."""

from __future__ import annotations

import json
from typing import Any, BinaryIO

LENGTH_BYTES = 4


def encode_frame(value: dict[str, Any]) -> bytes:
    """Return the bytes of a frame; lone surrogates stay escapes."""
    content = json.dumps(value).encode("ascii")
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def read_content(file: BinaryIO) -> bytes | None:
    """Return the JSON of the next frame, None at the end of the input."""
    head = file.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    size = int.from_bytes(head, "big")
    content = file.read(size)
    return content if len(content) == size else None
