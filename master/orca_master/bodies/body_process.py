"""Process that validates large bodies for the endpoint (body_checker.py), with its own interpreter lock.

    python -m orca_master.bodies.body_process

Reads requests from standard input and writes replies to standard output until the input ends. A body that needs more
than MAX_MEMORY_BYTES ends the process without a reply. The endpoint kills the process when a body takes too long.

Request: two lengths (`LENGTHS`), a header as JSON (`kind`, `max_model_len`), and the body. Reply: two lengths, a
header as JSON (`error`, `field` and `code`, or the result of `pack`), and token ids.
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
"""Lengths in bytes of the header and of the rest."""
MAX_MEMORY_BYTES = 1 << 30
"""Limit above the memory at the start; the values of a JSON document take up to 40 times its size."""


def limit_memory() -> None:
    """Limit the address space, and disable core files, which could be as large."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MAX_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def answer(requests: BinaryIO, answers: BinaryIO) -> bool:
    """Answer one request; return False at the end of the input. Raise MemoryError."""
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
        reply = {"error": str(error), "field": error.field, "code": error.code}
    # Lone surrogates of the body pass here; TextCodec.encode refuses them.
    text = json.dumps(reply, ensure_ascii=False).encode("utf-8", "surrogatepass")
    answers.write(LENGTHS.pack(len(text), len(token_ids)))
    answers.write(text)
    answers.write(token_ids)
    answers.flush()
    return True


def main() -> int:
    """Return exit code 0 at the end of the input, 1 if the memory is insufficient."""
    limit_memory()
    try:
        while answer(sys.stdin.buffer, sys.stdout.buffer):
            pass
    except (MemoryError, BrokenPipeError):
        os._exit(1)  # without a flush: the endpoint must not read a partial reply
    return 0


if __name__ == "__main__":
    sys.exit(main())
