"""The paper's Figure 10, measured: latency over throughput of orca(max_bs) and baseline(max_bs, mbs).

    python benchmarks/figure10.py              a quarter of the paper's lengths, minutes
    python benchmarks/figure10.py --scale 1    the paper's lengths: input U(32, 512), output U(1, 128)

Both systems run on one live engine, one trace after another, so that only the scheduling differs. The offered load
rises from 20 % to 120 % of ORCA's peak, its throughput when all requests arrive at once. The comparison is the
throughput at one latency: twice ORCA's median normalized latency under the lightest load (the paper: twice that of its
engine).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from common import TIME_LIMIT, baseline, draw, finish, model, on_engine, orca, parser, save
from orca_bench.on_engine import EngineSpec, LiveEngine
from orca_bench.outcome import figures
from orca_bench.scheduling import Scheduling
from orca_bench.traces import TracedRequest, shortened, synthetic, with_arrivals

LOADS = (0.2, 0.5, 0.8, 1.2)
LATENCY = "median_normalized_latency_ms"
OFF_THE_CHART = 20
ORCA_SIZES = (1, 8, 32)
BASELINE_SIZES = {1: ((1, 1), (8, 8)), 2: ((1, 1), (8, 8), (8, 4))}


async def measure(
    engine: LiveEngine, spec: EngineSpec, requests: list[TracedRequest], seed: int, loads: list[float]
) -> dict[str, list[dict[str, Any]]]:
    """Return a curve for every configuration."""
    systems: dict[str, Callable[[EngineSpec], Scheduling]] = {
        f"orca({size})": functools.partial(orca, size=size) for size in ORCA_SIZES
    }
    for size, microbatch in BASELINE_SIZES[spec.num_partitions]:
        systems[f"baseline({size}, {microbatch})"] = functools.partial(baseline, size=size, microbatch=microbatch)

    async def run(rate: float, name: str) -> dict[str, Any]:
        trace = with_arrivals(requests, rate, 1.0, seed)
        return {"request_rate": rate, **figures(await engine.run(trace, systems[name](spec), TIME_LIMIT))}

    peak = (await run(float("inf"), "orca(32)"))["request_throughput"]
    curves: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
    for load in loads:
        for name, curve in curves.items():
            # Skip higher loads of an overloaded system: they take long and add no information.
            if not curve or curve[-1][LATENCY] < OFF_THE_CHART * curve[0][LATENCY]:
                curve.append(await run(load * peak, name))
    return curves


def at_latency(curve: list[dict[str, Any]], limit: float) -> float:
    """Return the highest throughput within a latency, interpolated linearly between the measured points."""
    best = 0.0
    for point, after in zip(curve, [*curve[1:], None], strict=True):
        here = point[LATENCY]
        if here > limit:
            continue
        best = max(best, point["request_throughput"])
        if after is not None and after[LATENCY] > limit:
            fraction = (limit - here) / (after[LATENCY] - here)
            gain = after["request_throughput"] - point["request_throughput"]
            best = max(best, point["request_throughput"] + fraction * gain)
    return best


def main() -> None:
    """Measure, and write the figure and its data."""
    options = parser(__doc__ or "")
    options.add_argument("--requests", type=int, default=20)
    options.add_argument("--scale", type=float, default=0.25, help="factor of the paper's lengths (0.25)")
    options.add_argument("--loads", type=float, nargs="+", default=LOADS)
    options.add_argument("--partitions", type=int, nargs="+", default=[1, 2])
    arguments = options.parse_args()
    requests = shortened(synthetic("paper", arguments.requests, arguments.seed), arguments.scale)
    results: dict[str, Any] = {}
    with model() as path:
        for partitions in arguments.partitions:
            spec = EngineSpec(path, partitions, dtype=arguments.dtype, slots=32 * 640)
            curves = on_engine(
                spec,
                functools.partial(measure, spec=spec, requests=requests, seed=arguments.seed, loads=arguments.loads),
            )
            limit = 2 * min(runs[0][LATENCY] for runs in curves.values())
            best = {name: at_latency(curve, limit) for name, curve in curves.items()}
            orca_rate = max(rate for name, rate in best.items() if name.startswith("orca"))
            baseline_rate = max(rate for name, rate in best.items() if name.startswith("baseline"))
            title = f"{partitions} partition{'s' * (partitions > 1)}"
            results[title] = {
                "limit_ms": limit, "throughput_at_limit": best,
                "ratio": orca_rate / baseline_rate if baseline_rate else None,
                "peak": {name: max(run["request_throughput"] for run in runs) for name, runs in curves.items()},
                "curves": curves,
            }  # fmt: skip
            print(title, {key: value for key, value in results[title].items() if key != "curves"}, flush=True)
    figure, panels = draw(list(results))
    for title, panel in panels.items():
        for name, curve in results[title]["curves"].items():
            points = [(run["request_throughput"], run[LATENCY]) for run in curve]
            panel.plot(*zip(*points, strict=True), marker="o", label=name, linestyle="-" if "orca" in name else "--")
        panel.axhline(results[title]["limit_ms"], color="grey", linewidth=0.8)
        panel.set_ylim(0, 8 * results[title]["limit_ms"])
        panel.set_xlabel("throughput (requests/s)")
        panel.set_ylabel("median normalised latency (ms/token)")
        panel.legend(fontsize=7)
    finish(figure, arguments.folder, "figure10")
    numbers = {"dtype": arguments.dtype, "scale": arguments.scale, "requests": arguments.requests, **results}
    save(arguments.folder, "figure10", arguments.seed, numbers)


if __name__ == "__main__":
    main()
