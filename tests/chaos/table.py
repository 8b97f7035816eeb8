"""The table of a campaign: what the faults of each kind did to streams and processes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Row:
    """Measurements of the steps that began with one kind of fault. Times in seconds."""

    number: int = 0
    """Steps."""
    noticed: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    resumed: int = 0
    """Streams under way that lost their connection."""
    survivors: int = 0
    kept: int = 0


def table(rows: Mapping[str, Row]) -> list[str]:
    """Return the lines of a Markdown table with a row per kind."""
    lines = [
        "| fault | steps | noticed after (median, p95) | pause (median, p95) | streams | resumed | survivors kept |",
        "|---" * 7 + "|",
    ]
    for name, row in sorted(rows.items()):
        noticed, pause = (f"{statistics.median(part):.2f}, {_p95(part):.2f}" for part in (row.noticed, row.pauses))
        streams = f"{len(row.pauses)} | {row.resumed}"
        lines.append(f"| {name} | {row.number} | {noticed} | {pause} | {streams} | {row.kept} of {row.survivors} |")
    return lines


def _p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]
