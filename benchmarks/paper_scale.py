"""The paper's Figure 10 at its own scale, simulated: Table 1's models on A100-40G, ORCA and the baseline.

    python benchmarks/paper_scale.py [--requests 1000] [--folder docs/figures]

Writes paper-scale.json and one SVG per model. Stages cost what the roofline of cost.py says; nothing is fitted, so
absolute times are bounds from below. What can be compared with the paper is where the baseline runs out of memory, and
the ratio of the two systems at the paper's latency.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from orca_bench.cost import HARDWARE, TABLE_1, Roofline, Work
from orca_bench.plot import plot_curves
from orca_bench.request_level import RequestLevelSetup, simulate_request_level
from orca_bench.simulate import figures
from orca_bench.simulator import MisfitError, Run, Setup, simulate
from orca_bench.traces import TracedRequest, synthetic, with_arrivals

LIMIT_MS = 190.0
"""The median normalised latency at which section 6.2 compares throughput for 175 B."""
ORCA_SIZES = (1, 8, 32)
BASELINE_SIZES = ((1, 1), (4, 4), (8, 8), (16, 8), (16, 16))
LOADS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0, 1.1)
"""Offered load as a share of what the system does when everything is there at once."""


def sweep(
    requests: list[TracedRequest], seed: int, system: Callable[[list[TracedRequest]], Run]
) -> list[dict[str, Any]]:
    """Runs a system over rising load."""
    flooded = with_arrivals(requests, float("inf"), 1.0, seed)
    peak = len(requests) / system(flooded).seconds
    runs = []
    for load in LOADS:
        trace = with_arrivals(requests, load * peak, 1.0, seed)
        runs.append({"request_rate": load * peak, **figures(system(trace), trace)})
    return runs


def curves_of(cost: Roofline, requests: list[TracedRequest], seed: int) -> tuple[dict[str, Any], list[str]]:
    """Returns a curve for every configuration, and the names of those that do not fit into memory."""
    slots, partitions = cost.kv_slots(), cost.num_partitions
    curves: dict[str, Any] = {}
    missing = []
    for size in ORCA_SIZES:
        setup = Setup(partitions, size, slots, token_budget=None)
        curves[f"orca({size})"] = sweep(requests, seed, partial(simulate, setup=setup, cost=cost))
    for size, microbatch in BASELINE_SIZES:
        baseline, name = RequestLevelSetup(partitions, size, microbatch, slots), f"baseline({size},{microbatch})"
        try:
            curves[name] = sweep(requests, seed, partial(simulate_request_level, setup=baseline, cost=cost))
        except MisfitError:
            missing.append(name)
    return curves, missing


def within_limit(runs: list[dict[str, Any]]) -> float:
    """The highest throughput whose median normalised latency stays within LIMIT_MS."""
    return max(
        (run["request_throughput"] for run in runs if run["median_normalized_latency_ms"] <= LIMIT_MS), default=0.0
    )


def summary(curves: dict[str, Any], kind: str) -> dict[str, Any]:
    """Returns the best configuration of a kind within the limit, and the kind's peak."""
    mine = {name: runs for name, runs in curves.items() if name.startswith(kind)}
    best, name = max((within_limit(runs), name) for name, runs in mine.items())
    return {
        "name": name,
        "within_limit": best,
        "peak": max(run["request_throughput"] for runs in mine.values() for run in runs),
    }


def main() -> None:
    """Prints a table and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("docs/figures"))
    arguments = parser.parse_args()
    requests = synthetic("paper", arguments.requests, arguments.seed)
    found: dict[str, Any] = {
        "command": f"paper_scale.py --requests {arguments.requests} --seed {arguments.seed}",
        "version": version("orca-serving"), "python": platform.python_version(), "limit_ms": LIMIT_MS,
    }  # fmt: skip
    begin = time.perf_counter()
    for model, (shape, partitions, ranks) in TABLE_1.items():
        cost = Roofline(HARDWARE["a100-40g"], shape, partitions, ranks)
        curves, missing = curves_of(cost, requests, arguments.seed)
        orca, baseline = summary(curves, "orca"), summary(curves, "baseline")
        alone_ms = partitions * cost.stage_seconds([Work(1, 256)]) * 1e3
        found[model] = {
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
    found["seconds"] = round(time.perf_counter() - begin, 1)
    (arguments.folder / "paper-scale.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
