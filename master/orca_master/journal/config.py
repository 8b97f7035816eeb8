"""`JournalConfig`: the options of the journal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """Options of the journal. `window`: seconds for which an ended request is remembered."""

    folder: Path
    window: float
