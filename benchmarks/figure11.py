"""The paper's Figure 11, measured: requests of equal lengths, so that no request finishes before its batch.

    python benchmarks/figure11.py [--input-len 32 --output-len 32]

The baseline performs better here than on the paper's trace. With a max batch size of 1 ORCA is a pipeline without
batching: the only case in which the paper measures the baseline (max_bs 8) ahead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from common import TIME_LIMIT, baseline, draw, finish, model, on_engine, orca, parser, save
from orca_bench.on_engine import EngineSpec, LiveEngine
from orca_bench.outcome import figures
from orca_bench.scheduling import Scheduling
from orca_bench.traces import TracedRequest, synthetic, with_arrivals

LOADS = (0.3, 0.7, 1.3)
SYSTEMS: dict[str, Callable[[EngineSpec], Scheduling]] = {
    "orca(1)": functools.partial(orca, size=1),
    "orca(8)": functools.partial(orca, size=8),
    "baseline(1, 1)": functools.partial(baseline, size=1, microbatch=1),
    "baseline(8, 8)": functools.partial(baseline, size=8, microbatch=8),
}


async def measure(
    engine: LiveEngine, spec: EngineSpec, requests: list[TracedRequest], seed: int
) -> dict[str, list[dict[str, Any]]]:
    """Return a curve for every configuration."""

    async def run(rate: float, name: str) -> dict[str, Any]:
        trace = with_arrivals(requests, rate, 1.0, seed)
        return {"request_rate": rate, **figures(await engine.run(trace, SYSTEMS[name](spec), TIME_LIMIT))}

    peak = (await run(float("inf"), "orca(8)"))["request_throughput"]
    return {name: [await run(load * peak, name) for load in LOADS] for name in SYSTEMS}


def main() -> None:
    """Measure, and write the figure and its data."""
    options = parser(__doc__ or "")
    options.add_argument("--requests", type=int, default=20)
    options.add_argument("--input-len", type=int, default=32)
    options.add_argument("--output-len", type=int, default=32)
    arguments = options.parse_args()
    requests = synthetic("homogeneous", arguments.requests, arguments.seed, (arguments.input_len, arguments.output_len))
    with model() as path:
        spec = EngineSpec(path, 2, dtype=arguments.dtype, slots=8 * 640)
        curves = on_engine(spec, lambda engine: measure(engine, spec, requests, arguments.seed))
    title = f"2 partitions, {arguments.input_len} input and {arguments.output_len} output tokens"
    figure, panels = draw([title])
    for name, curve in curves.items():
        points = [(run["request_throughput"], run["median_e2el_ms"]) for run in curve]
        panels[title].plot(
            *zip(*points, strict=True), marker="o", label=name, linestyle="-" if "orca" in name else "--"
        )
    panels[title].set_xlabel("throughput (requests/s)")
    panels[title].set_ylabel("median latency (ms)")
    panels[title].set_ylim(bottom=0)
    panels[title].legend()
    peak = {name: max(run["request_throughput"] for run in runs) for name, runs in curves.items()}
    print(title, {name: round(rate, 2) for name, rate in peak.items()})
    finish(figure, arguments.folder, "figure11")
    numbers = {"dtype": arguments.dtype, "requests": arguments.requests, "peak": peak, "curves": curves}
    save(arguments.folder, "figure11", arguments.seed, numbers)


if __name__ == "__main__":
    main()
