"""Measures the prediction error of `orca simulate --calibration` for a live server at three held-out loads.

    python benchmarks/calibration_check.py [--partitions 1 2]

`orca serve` runs the 124 M model with an iteration log and without look-ahead, like the simulator. Two loads (all
requests at once, and 40 % of that rate; seed 1) are used for the calibration; three other loads (30 %, 50 %, 70 %;
seed 2) are measured over HTTP and predicted by the simulator. Calibration and measurement alternate `--rounds` times,
and medians are compared, because the speed of a shared machine varies and because queueing near the peak amplifies
errors of the service time.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from common import model, parser, save
from orca_bench.calibration import calibrate
from orca_bench.open_loop import measure
from orca_bench.outcome import figures
from orca_bench.scheduling import OrcaScheduling, OrcaSetup
from orca_bench.servers import serve, unwind_on_sigterm
from orca_bench.simulator import simulate
from orca_bench.traces import TracedRequest, shortened, synthetic, with_arrivals

CALIBRATION_LOAD = 0.4
HELD_BACK_LOADS = (0.3, 0.5, 0.7)
COMPARED = ("request_throughput", "median_normalized_latency_ms")


def check(path: Path, partitions: int, arguments: Any) -> list[dict[str, Any]]:
    """Calibrate, predict and measure; print and return a row for each held-out load."""
    name, slots, size = f"{partitions} partitions", 32 * 640, 16
    rows = []
    log = path.parent / f"iterations-{partitions}.jsonl"
    options = ["--dtype", arguments.dtype, "-pp", str(partitions), "--max-batch-size", str(size), "--no-lookahead"]
    options += ["--target-itl", "0"]  # as in the simulator
    with serve(path, [*options, "--kv-slots", str(slots), "--iteration-log", str(log)]) as (_, url):

        def requests(seed: int) -> list[TracedRequest]:
            return shortened(synthetic("paper", arguments.requests, seed), arguments.scale)

        measure(name, url, path.name, with_arrivals(requests(0)[:4], float("inf"), 1.0, 0))  # warm-up
        peak = measure(name, url, path.name, with_arrivals(requests(1), float("inf"), 1.0, 1))["request_throughput"]

        def learn() -> list[str]:
            known = len(log.read_text().splitlines())
            for rate in (float("inf"), CALIBRATION_LOAD * peak):
                measure(name, url, path.name, with_arrivals(requests(1), rate, 1.0, 1))
            return log.read_text().splitlines()[known:]

        learned: list[str] = []
        traces = {load: with_arrivals(requests(2), load * peak, 1.0, 2) for load in HELD_BACK_LOADS}
        measured: dict[float, list[dict[str, Any]]] = {load: [] for load in traces}
        for _ in range(arguments.rounds):
            for load, trace in traces.items():
                learned += learn()
                measured[load].append(measure(name, url, path.name, trace))
        selected = path.parent / f"learned-{partitions}.jsonl"
        selected.write_text("\n".join(learned))
        cost = calibrate(selected)
        for load, trace in traces.items():
            scheduling = OrcaScheduling(OrcaSetup(partitions, size, slots))
            predicted = figures(simulate(trace, scheduling, cost, partitions))
            row: dict[str, Any] = {"partitions": partitions, "load": load, "request_rate": load * peak}
            for key in COMPARED:
                values = [each[key] for each in measured[load]]
                row |= {f"predicted_{key}": predicted[key], f"measured_{key}": statistics.median(values)}
                row |= {f"error_{key}": predicted[key] / row[f"measured_{key}"] - 1, f"all_{key}": values}
            rows.append(row)
            errors = ", ".join(f"{key} {row[f'error_{key}']:+.1%} of {row[f'measured_{key}']:.2f}" for key in COMPARED)
            print(f"{partitions} partitions, {load:.0%} of {peak:.2f} requests/s: {errors}", flush=True)
    return rows


def main() -> None:
    """Print and write the table."""
    options = parser(__doc__ or "")
    options.add_argument("--partitions", type=int, nargs="+", default=[1, 2])
    options.add_argument("--requests", type=int, default=60)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--scale", type=float, default=0.5, help="factor of the paper's lengths (0.5)")
    arguments = options.parse_args()
    unwind_on_sigterm()
    begin = time.perf_counter()
    with model() as path:
        rows = [row for partitions in arguments.partitions for row in check(path, partitions, arguments)]
    save(arguments.folder, "calibration", arguments.seed, {"rows": rows, "seconds": time.perf_counter() - begin})


if __name__ == "__main__":
    main()
