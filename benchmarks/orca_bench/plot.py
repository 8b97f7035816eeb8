"""Curves of a sweep: median normalised latency over throughput, as in the paper's Figure 10."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def plot_sweep(runs: Sequence[dict[str, Any]], title: str, path: Path) -> None:
    """Writes one curve to `path`, whose suffix (.svg, .png) says the format."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    ordered = sorted(runs, key=lambda run: float(run["request_throughput"]))
    throughput = [run["request_throughput"] for run in ordered]
    latency = [run["median_normalized_latency_ms"] for run in ordered]
    axes.plot(throughput, latency, marker="o")
    axes.set_xlabel("throughput (requests/s)")
    axes.set_ylabel("median normalised latency (ms/token)")
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.grid(True, alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
