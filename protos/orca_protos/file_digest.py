"""Digests of a model's files by samples, which tell other files apart without reading gigabytes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from orca_protos.model_files import FileError, open_file

SAMPLE_BYTES = 4096
DIGITS = 16
"""Hexadecimal digits of a digest."""
TOKENIZER_SAMPLES = 256


def sampled_digest(folder: Path, name: str, num_samples: int) -> str:
    """Return a digest of a file's size and of samples at equal distances, from its start to its end.

    Raises FileError, and OSError if the file cannot be read.
    """
    with open_file(folder, name) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        digest = hashlib.sha256(str(size).encode())
        if size <= num_samples * SAMPLE_BYTES:
            digest.update(file.read(size))
        else:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            for index in range(num_samples):
                digest.update(os.pread(descriptor, SAMPLE_BYTES, (size - SAMPLE_BYTES) * index // (num_samples - 1)))
    return digest.hexdigest()[:DIGITS]


def tokenizer_digest(folder: Path) -> str:
    """Return the digest of tokenizer.json, "" without a readable one."""
    try:
        return sampled_digest(folder, "tokenizer.json", TOKENIZER_SAMPLES)
    except (FileError, OSError):
        return ""
