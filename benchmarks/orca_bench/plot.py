"""Plots of sweeps: median normalized latency over throughput, as in the paper's Figure 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot


def plot_curves(curves: Mapping[str, Sequence[Mapping[str, Any]]], title: str, path: Path) -> None:
    """Plot one curve per name to `path`, in the format of its suffix (.svg, .png)."""
    mpl.use("Agg")
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for name, runs in curves.items():
        points = sorted((run["request_throughput"], run["median_normalized_latency_ms"]) for run in runs)
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set_xlabel("throughput (requests/s)")
    axes.set_ylabel("median normalised latency (ms/token)")
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.grid(True, alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
