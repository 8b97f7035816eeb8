"""`BatchConfig`: the folder of files and batches, and their limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

WINDOW_SECONDS = 24 * 3600
"""Of `completion_window: "24h"`: a batch that takes longer expires."""


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """Options of batches. Numbers of files and bytes are of all API keys together, files with answers included; one key
    has half of them at most (shares.py).

    `seconds`: how long a file is kept after its creation, and a batch after its end. `concurrency`: choices and
    embeddings of requests of batches that are computed at a time.
    """

    folder: Path
    max_files: int = 1000
    max_bytes: int = 4 << 30
    seconds: float = 30 * 86400.0
    max_file_bytes: int = 200 << 20
    max_lines: int = 50_000
    max_line_bytes: int = 1 << 20
    concurrency: int = 8
