"""The paper's Figures 9 to 11 at the paper's scale, simulated: Table 1's models on A100-40G, ORCA and the baseline.

    python benchmarks/paper_scale.py [--requests 1000] [--folder docs/figures]

Writes paper-scale.json and SVGs. Stage times come from the roofline of cost.py; nothing is fitted, so
absolute times are lower bounds. Comparable with the paper: which baseline configurations run out of memory, and
the throughput ratio of the two systems at the paper's latency.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import draw, finish
from orca_bench.baselines.request_level import RequestLevel, RequestLevelSetup
from orca_bench.circumstances import circumstances
from orca_bench.cost import HARDWARE, TABLE_1, Roofline, Work
from orca_bench.outcome import figures
from orca_bench.plot import plot_curves
from orca_bench.scheduling import MisfitError, OrcaScheduling, OrcaSetup, Scheduling
from orca_bench.simulator import simulate
from orca_bench.traces import TracedRequest, synthetic, with_arrivals

LIMIT_MS = 190.0
"""The median normalised latency at which section 6.2 compares throughput for 175 B."""
ORCA_SIZES = (1, 8, 32)
BASELINE_SIZES = ((1, 1), (4, 4), (8, 8), (16, 8), (16, 16))
BATCHES = (1, 2, 4, 8, 16, 32)
"""Figure 9's batches of equal requests, 32 output tokens each."""
ALIKE = (32, 32)
"""Input and output tokens of Figure 11's requests; the paper does not give them."""
LOADS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0, 1.1)
"""Offered load as a fraction of the system's throughput when all requests arrive at once."""


def sweep(
    requests: list[TracedRequest], seed: int, cost: Roofline, make: Callable[[], Scheduling]
) -> list[dict[str, Any]]:
    """Simulate a system at increasing load."""

    def run(rate: float) -> dict[str, Any]:
        trace = with_arrivals(requests, rate, 1.0, seed)
        return {"request_rate": rate, **figures(simulate(trace, make(), cost, cost.num_partitions))}

    peak = run(float("inf"))["request_throughput"]
    return [run(load * peak) for load in LOADS]


def curves_of(cost: Roofline, requests: list[TracedRequest], seed: int) -> tuple[dict[str, Any], list[str]]:
    """Return a curve for each configuration, and the names of configurations that exceed the memory."""
    slots, partitions = cost.kv_slots(), cost.num_partitions
    curves: dict[str, Any] = {}
    missing = []
    for size in ORCA_SIZES:
        setup = OrcaSetup(partitions, size, slots, token_budget=None)
        curves[f"orca({size})"] = sweep(requests, seed, cost, functools.partial(OrcaScheduling, setup))
    for size, microbatch in BASELINE_SIZES:
        baseline, name = RequestLevelSetup(partitions, size, microbatch, slots), f"baseline({size},{microbatch})"
        try:
            curves[name] = sweep(requests, seed, cost, functools.partial(RequestLevel, baseline))
        except MisfitError:
            missing.append(name)
    return curves, missing


def within_limit(runs: list[dict[str, Any]]) -> float:
    """Return the highest throughput with a median normalized latency of at most LIMIT_MS."""
    return max(
        (run["request_throughput"] for run in runs if run["median_normalized_latency_ms"] <= LIMIT_MS), default=0.0
    )


def summary(curves: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the best configuration of a kind within the limit, and the peak throughput of the kind."""
    of_kind = {name: runs for name, runs in curves.items() if name.startswith(kind)}
    best, name = max((within_limit(runs), name) for name, runs in of_kind.items())
    return {
        "name": name,
        "within_limit": best,
        "peak": max(run["request_throughput"] for runs in of_kind.values() for run in runs),
    }


def figure9(folder: Path) -> dict[str, Any]:
    """Return milliseconds per batch without scheduler and pipelining; None where the baseline exceeds the memory."""
    results: dict[str, Any] = {}
    models = [name for name in TABLE_1 if name != "341b"]  # not in the paper's figure either
    figure, panels = draw([f"{name}, simulated" for name in models], width=3.6)
    for name in models:
        shape, partitions, ranks = TABLE_1[name]
        cost = Roofline(HARDWARE["a100-40g"], shape, partitions, ranks)
        curves: dict[str, list[float | None]] = {}
        for inputs in (32, 128):
            for size in BATCHES:
                trace = synthetic("homogeneous", size, 0, (inputs, 32))
                whole = OrcaSetup(partitions, size, cost.kv_slots(), token_budget=None, balanced=False)
                seconds = simulate(trace, OrcaScheduling(whole), cost, partitions).seconds
                fits = size * 2048 <= cost.kv_slots()
                curves.setdefault(f"orca ({inputs})", []).append(seconds * 1e3)
                curves.setdefault(f"baseline ({inputs})", []).append(seconds * 1e3 if fits else None)
        results[name] = {"batch_sizes": BATCHES, **curves}
        panel = panels[f"{name}, simulated"]
        for label, times in curves.items():
            panel.plot(BATCHES, times, marker="o", label=label, linestyle="-" if "orca" in label else "--")
        panel.set_xlabel("batch size")
        panel.set_ylabel("ms per batch")
        panel.set_ylim(bottom=0)
        panel.legend(fontsize=7)
    finish(figure, folder, "figure9-simulated")
    return results


def figure11(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Return curves of the 175 B model for requests of equal lengths."""
    shape, partitions, ranks = TABLE_1["175b"]
    cost = Roofline(HARDWARE["a100-40g"], shape, partitions, ranks)
    curves, _ = curves_of(cost, synthetic("homogeneous", count, seed, ALIKE), seed)
    figure, panels = draw(["175b, equal requests, simulated"])
    (panel,) = panels.values()
    for name, runs in curves.items():
        points = [(run["request_throughput"], run["median_e2el_ms"]) for run in runs]
        panel.plot(*zip(*points, strict=True), marker="o", label=name, linestyle="-" if "orca" in name else "--")
    panel.set_xlabel("throughput (requests/s)")
    panel.set_ylabel("median latency (ms)")
    panel.set_ylim(0, 10 * min(runs[0]["median_e2el_ms"] for runs in curves.values()))
    panel.legend(fontsize=7)
    finish(figure, folder, "figure11-simulated")
    peak = {name: max(run["request_throughput"] for run in runs) for name, runs in curves.items()}
    print("figure 11, peaks:", {name: round(rate, 2) for name, rate in peak.items()})
    return {"lengths": ALIKE, "peak": peak, "curves": curves}


def main() -> None:
    """Print a table and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("docs/figures"))
    arguments = parser.parse_args()
    requests = synthetic("paper", arguments.requests, arguments.seed)
    results: dict[str, Any] = {**circumstances(arguments.seed), "limit_ms": LIMIT_MS}
    begin = time.perf_counter()
    results["figure9"] = figure9(arguments.folder)
    results["figure11"] = figure11(arguments.folder, arguments.requests, arguments.seed)
    for model, (shape, partitions, ranks) in TABLE_1.items():
        cost = Roofline(HARDWARE["a100-40g"], shape, partitions, ranks)
        curves, missing = curves_of(cost, requests, arguments.seed)
        orca, baseline = summary(curves, "orca"), summary(curves, "baseline")
        alone_ms = partitions * cost.stage_seconds(0, [Work(1, 256)]) * 1e3
        results[model] = {
            "slots": cost.kv_slots(), "out_of_memory": missing, "one_token_alone_ms": alone_ms, "orca": orca,
            "baseline": baseline, "curves": curves,
        }  # fmt: skip
        print(
            f"{model}: {cost.kv_slots()} slots, one token alone {alone_ms:.1f} ms; within {LIMIT_MS:.0f} ms/token "
            f"{orca['name']} {orca['within_limit']:.3f} requests/s, {baseline['name']} {baseline['within_limit']:.3f}: "
            f"{orca['within_limit'] / baseline['within_limit']:.1f} x; peaks {orca['peak']:.2f} and "
            f"{baseline['peak']:.2f}; out of memory: {', '.join(missing) or 'none'}"
        )
        arguments.folder.mkdir(parents=True, exist_ok=True)
        plot_curves(curves, f"{model}, paper's trace, simulated", arguments.folder / f"figure10-{model}-simulated.svg")
    results["seconds"] = round(time.perf_counter() - begin, 1)
    (arguments.folder / "paper-scale.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
