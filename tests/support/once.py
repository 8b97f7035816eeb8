"""Results that several test processes share and only one computes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of results that later runs reuse; a result's file name has a digest of its inputs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orca-tests"


def once(path: Path, make: Callable[[Path], None]) -> Path:
    """Return `path`, a file or folder, which the first caller on this machine creates.

    `make` writes to a temporary path, which is then renamed, so that `path` is always complete. Other callers wait
    (flock(2)); if the first caller fails, the next one tries.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            part = path.with_name(f"{path.name}.{os.getpid()}.part")
            make(part)
            part.rename(path)
    return path
