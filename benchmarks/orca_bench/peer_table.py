"""Figures of a comparison of engines from their paired rounds, and the table of each engine's best setting. Pure.

A round measures every column once, so that two columns of a round saw the same state of the machine. A ratio is the
median of the ratios within the rounds, with its minimum and maximum; it is a tie if 1 lies between them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median, minimum and maximum of ORCA's speed divided by a peer's, over the rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return `1.23 x [1.10, 1.30]`, with `(tie)` after it if the rounds contradict each other."""
        tie = " (tie)" if self.low <= 1 <= self.high else ""
        return f"{self.median:.2f} x [{self.low:.2f}, {self.high:.2f}]{tie}"


@dataclass(frozen=True, slots=True)
class Column:
    """A measured setting: its engine, the setting of ORCA with the same precision, tokens/s in each round."""

    name: str
    engine: str
    reference: str
    speeds: Sequence[float]

    @property
    def speed(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.speeds)


def ratio(orca: Sequence[float], peer: Sequence[float]) -> Ratio:
    """Return ORCA's ratio to a peer; raise ValueError if the rounds are not the same."""
    ratios = [own / other for own, other in zip(orca, peer, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def ratios(columns: Sequence[Column]) -> dict[str, Ratio]:
    """Return the ratio of each column by its name; columns without their reference, and references, have none."""
    speeds = {column.name: column.speeds for column in columns}
    return {
        column.name: ratio(speeds[column.reference], column.speeds)
        for column in columns
        if column.reference in speeds and column.reference != column.name
    }


def best(columns: Iterable[Column]) -> dict[str, Column]:
    """Return the fastest column of each engine; of equally fast ones the first."""
    fastest: dict[str, Column] = {}
    for column in columns:
        if column.engine not in fastest or column.speed > fastest[column.engine].speed:
            fastest[column.engine] = column
    return fastest


def table(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of each engine's best setting as a Markdown table.

    A cell has `dtype`, `weights`, `batch_size`, `threads`, `columns` (list of Column) and `failed`: a name of a setting
    with the reason for which it has no figures. An engine without a figure has a row, too.
    """
    lines = [
        "| activations, weights, batch, threads | engine | best setting | tokens/s | ORCA at the same precision |",
        "|---|---|---|---|---|",
    ]
    for cell in cells:
        columns: list[Column] = cell["columns"]
        head = f"{cell['dtype']}, {cell['weights']}, {cell['batch_size']}, {cell['threads']}"
        speeds = {column.name: column.speed for column in columns}
        against = ratios(columns)
        for engine, column in best(columns).items():
            orca = ""
            if column.name in against:
                orca = f" `{column.reference}` {speeds[column.reference]:.0f}: {against[column.name]}"
            lines.append(f"| {head} | {engine} | `{column.name}` | {column.speed:.0f} |{orca} |")
        measured = {column.engine for column in columns}
        missing = {engine: reason for engine, reason in _by_engine(cell["failed"]).items() if engine not in measured}
        lines += [f"| {head} | {engine} | none: {reason} | | |" for engine, reason in missing.items()]
    return "\n".join(lines)


def _by_engine(failed: Mapping[str, str]) -> dict[str, str]:
    return {name.partition(":")[0]: reason.replace("|", "\\|") for name, reason in failed.items()}
