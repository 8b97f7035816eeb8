"""A process that checks large bodies for the endpoint (body_checker.py): its interpreter's lock is its own.

    python -m orca_master.bodies.body_process

Reads requests from standard input and writes answers to standard output until the input ends. A body that needs more
than MAX_MEMORY_BYTES ends the process without an answer. The endpoint kills the process when a body takes too long.

Request: two lengths (`LENGTHS`), a header as JSON (`kind`, `max_model_len`), and the body. Answer: two lengths, a
header as JSON (`error` and `field`, or what `pack` returns), and token ids.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
from pathlib import Path
from typing import BinaryIO

from orca_master.bodies.lengths import Lengths
from orca_master.bodies.validation import check_body, pack
from orca_master.errors import RequestError

LENGTHS = struct.Struct("<QQ")
"""Bytes of the header and of what follows it."""
MAX_MEMORY_BYTES = 1 << 30
"""Beyond what the process has at its start: a JSON document's values take up to forty times its own bytes."""


def limit_memory() -> None:
    """Bounds the address space, and forbids core files, which would be as large."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MAX_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def answer(requests: BinaryIO, answers: BinaryIO) -> bool:
    """Answers one request; False at the end of the input. Raises MemoryError."""
    lengths = requests.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return False
    header_length, body_length = LENGTHS.unpack(lengths)
    header = json.loads(requests.read(header_length))
    body = requests.read(body_length)
    token_ids = b""
    try:
        reply, token_ids = pack(check_body(header["kind"], body, Lengths(header["max_model_len"])))
    except RequestError as error:
        reply = {"error": str(error), "field": error.field}
    # A lone surrogate of the body is an error of its own, later.
    text = json.dumps(reply, ensure_ascii=False).encode("utf-8", "surrogatepass")
    answers.write(LENGTHS.pack(len(text), len(token_ids)))
    answers.write(text)
    answers.write(token_ids)
    answers.flush()
    return True


def main() -> int:
    """Return 0 at the end of the input, 1 if memory does not suffice."""
    limit_memory()
    try:
        while answer(sys.stdin.buffer, sys.stdout.buffer):
            pass
    except (MemoryError, BrokenPipeError):
        os._exit(1)  # without a flush: the endpoint must not read half an answer
    return 0


if __name__ == "__main__":
    sys.exit(main())
