"""Plots: latency over throughput of sweeps, as in the paper's Figure 10, and panels of series over time."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot
from matplotlib.backend_bases import FigureCanvasBase

from orca_bench.options import output_file


def plot_file(text: str) -> Path:
    """Return the path of a plot to write (argparse type): its suffix must be a format of matplotlib."""
    path = output_file(text)
    if path.suffix.lower().removeprefix(".") not in FigureCanvasBase.filetypes:
        raise argparse.ArgumentTypeError(f"{text!r} does not end with .svg, .png or another format of matplotlib")
    return path


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


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: lines by name, each of points (minute, value). `scale`: linear from 0, or log."""

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    scale: str = "linear"


def plot_panels(panels: Sequence[Panel], title: str, path: Path) -> None:
    """Plot panels over the same minutes, two in a row, to `path`, in the format of its suffix (.svg, .png)."""
    mpl.use("Agg")
    rows = (len(panels) + 1) // 2
    figure, grid = pyplot.subplots(rows, 2, figsize=(11, 2.9 * rows), sharex=True, squeeze=False)
    for panel, axes in zip(panels, grid.flat, strict=False):
        for name, points in panel.lines.items():
            axes.plot(*zip(*points, strict=True), label=name, linewidth=1.2)
        axes.set_title(panel.title, fontsize=10)
        axes.set_yscale(panel.scale)
        if panel.scale == "linear":
            axes.set_ylim(bottom=0)
        axes.grid(True, alpha=0.3)
        if panel.lines:
            axes.legend(fontsize=8)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("minute")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
