"""Results that several test processes need and one of them makes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of results that later runs reuse; the name of each has a digest of what it depends on."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orca-tests"


def once(path: Path, make: Callable[[Path], None]) -> Path:
    """Return `path`, a file or folder, after the first caller on this machine has made it.

    `make` writes to the path that it is given, which is then renamed, so that `path` is complete. Other callers wait
    (flock(2)); if the first one fails, the next one tries.
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
