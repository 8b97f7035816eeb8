"""`orca simulate`: simulates throughput and latency of a trace for batch sizes, slots, P x T and replicas."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orca_protos.command_line import OneLineParser
from orca_protos.progress_display import progress_display

from orca_bench.baselines.request_level import RequestLevel, RequestLevelSetup
from orca_bench.calibration import CalibrationError, calibrate
from orca_bench.circumstances import circumstances
from orca_bench.cost import HARDWARE, TABLE_1, CostModel, Roofline, Shape
from orca_bench.options import (
    add_trace_options,
    output_file,
    positive,
    rate,
    read_requests,
    refuse_ignored,
)
from orca_bench.outcome import Run, figures
from orca_bench.plot import plot_curves, plot_file
from orca_bench.scheduling import MisfitError, OrcaScheduling, OrcaSetup, Scheduling
from orca_bench.simulator import simulate
from orca_bench.traces import TracedRequest, TraceError, with_arrivals

MAX_SLOTS = 2**28
"""The ledger has a list of all free blocks."""
IGNORED_BY_BASELINE = ("replicas", "token_budget", "admission", "no_balanced_batches")
IGNORED_WITH_CALIBRATION = (
    "model",
    "num_layers",
    "hidden_size",
    "hardware",
    "pipeline_parallel_size",
    "tensor_parallel_size",
)


def main(argv: list[str]) -> int:
    """Run `orca simulate`: exit code 0, 2 for invalid options or input."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.request_level:
        refuse_ignored(parser, argv, "--request-level", IGNORED_BY_BASELINE)
    if arguments.calibration is not None:
        refuse_ignored(parser, argv, "--calibration", IGNORED_WITH_CALIBRATION)
    try:
        partitions, ranks, cost, slots = _system(arguments)
        requests, own_arrivals = read_requests(parser, argv)
        rates = [None] if own_arrivals else arguments.request_rate
        results = []
        total = len(requests) * len(rates) * len(arguments.max_batch_size)
        with progress_display("simulating", "requests", sys.stderr, _print_error) as show:
            finished = itertools.count(1)
            for offered in rates:
                trace = requests
                if offered is not None:
                    trace = with_arrivals(requests, offered, arguments.burstiness, arguments.seed)
                for size in arguments.max_batch_size:
                    begin = time.perf_counter()
                    run = _run(trace, arguments, partitions, size, slots, cost, lambda: show(next(finished), total))
                    result = figures(run)
                    result["iterations_per_second"] = run.num_iterations / (time.perf_counter() - begin)
                    results.append({"max_batch_size": size, "request_rate": offered, **result})
    except (TraceError, MisfitError, CalibrationError) as error:
        parser.error(str(error))
    parallel = f"{partitions} x {ranks} x {arguments.replicas}"
    if arguments.calibration is not None:
        title = source = f"calibrated from {arguments.calibration}"
    else:
        title, source = f"on {arguments.hardware}", f"{arguments.model} on {arguments.hardware}"
    _show(results, f"{parallel} {title}, {slots} slots")
    if arguments.output is not None:
        shared = {**circumstances(arguments.seed), "slots": slots}
        arguments.output.write_text(json.dumps([shared | result for result in results], indent=1))
    if arguments.plot is not None:
        curves = {
            f"max_bs {size}": [result for result in results if result["max_batch_size"] == size]
            for size in arguments.max_batch_size
        }
        plot_curves(curves, f"{source}, simulated", arguments.plot)
    return 0


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="orca simulate", description="Simulates the scheduler with a cost model of the pipeline stages."
    )
    parser.add_argument("--model", choices=sorted(TABLE_1), default="175b", help="model of the paper's Table 1 (175b)")
    parser.add_argument("--num-layers", type=positive, help="number of layers of a custom GPT model")
    parser.add_argument("--hidden-size", type=positive, help="hidden size of a custom GPT model")
    parser.add_argument(
        "--hardware",
        choices=sorted(HARDWARE),
        default="a100-40g",
        help="GPU whose published peak rates the cost model uses (a100-40g)",
    )
    parser.add_argument("--pipeline-parallel-size", "-pp", type=positive, help="inter-layer partitions (Table 1's)")
    parser.add_argument("--tensor-parallel-size", "-tp", type=positive, help="intra-layer partitions (Table 1's)")
    parser.add_argument("--replicas", type=positive, default=1, help="pipelines that share one request pool (1)")
    parser.add_argument(
        "--max-batch-size",
        type=positive,
        nargs="+",
        default=[32],
        help="requests per iteration; several values make a sweep (32)",
    )
    parser.add_argument("--kv-slots", type=positive, help="K/V slots per pipeline (sized from free memory)")
    parser.add_argument("--token-budget", type=positive, help="input tokens per iteration (no limit, as in the paper)")
    parser.add_argument(
        "--admission",
        choices=("reserve", "paged"),
        default="reserve",
        help="admission policy of K/V slots, see orca serve (reserve)",
    )
    parser.add_argument(
        "--no-balanced-batches",
        action="store_true",
        help="Algorithm 1 as printed: do not split few requests into a batch per partition",
    )
    parser.add_argument(
        "--request-level", type=positive, metavar="MBS", help="the paper's baseline, with microbatches of MBS requests"
    )
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE",
        help="fit stage times to the log of a live engine (orca serve --iteration-log FILE); needs --kv-slots",
    )  # fmt: skip
    add_trace_options(parser)
    parser.add_argument(
        "--request-rate",
        type=rate,
        nargs="+",
        default=[1.0],
        help="requests per second; several values make a sweep (1)",
    )
    parser.add_argument(
        "--output", type=output_file, metavar="FILE.json", help="file for all figures, versions, command and seed"
    )
    parser.add_argument(
        "--plot", type=plot_file, metavar="FILE.svg", help="latency over throughput, a curve per batch size"
    )
    return parser


def _system(arguments: argparse.Namespace) -> tuple[int, int, CostModel, int]:
    """Return P, T, the cost model, and the number of slots; raise MisfitError or CalibrationError."""
    shape, partitions, ranks = TABLE_1[arguments.model]
    if arguments.num_layers or arguments.hidden_size:
        shape = Shape(arguments.num_layers or shape.num_layers, arguments.hidden_size or shape.hidden_size)
    partitions = arguments.pipeline_parallel_size or partitions
    ranks = arguments.tensor_parallel_size or ranks
    roofline = Roofline(HARDWARE[arguments.hardware], shape, partitions, ranks)
    slots = arguments.kv_slots or roofline.kv_slots()
    if slots > MAX_SLOTS:
        raise MisfitError(f"{slots} K/V slots per pipeline: at most {MAX_SLOTS} can be simulated")
    if arguments.calibration is None:
        return partitions, ranks, roofline, slots
    if arguments.kv_slots is None:
        raise CalibrationError("--calibration needs --kv-slots, because a log does not contain the memory size")
    measured = calibrate(arguments.calibration)
    return len(measured.stages), 1, measured, arguments.kv_slots


def _run(
    trace: list[TracedRequest],
    arguments: argparse.Namespace,
    partitions: int,
    size: int,
    slots: int,
    cost: CostModel,
    on_finish: Callable[[], None],
) -> Run:
    scheduling: Scheduling
    if arguments.request_level:
        scheduling = RequestLevel(RequestLevelSetup(partitions, size, min(size, arguments.request_level), slots))
    else:
        setup = OrcaSetup(
            partitions,
            size,
            slots,
            arguments.replicas,
            arguments.token_budget,
            arguments.admission,
            not arguments.no_balanced_batches,
        )
        scheduling = OrcaScheduling(setup)
    return simulate(trace, scheduling, cost, partitions, on_finish)


def _print_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(results: list[dict[str, Any]], title: str) -> None:
    print(
        f"{title}\n{'max_bs':>6} {'offered/s':>10} {'requests/s':>11} {'tokens/s':>10} {'ms/token':>10} {'TTFT ms':>10}"
    )
    for result in results:
        offered = "trace" if result["request_rate"] is None else f"{result['request_rate']:.3f}"
        print(
            f"{result['max_batch_size']:>6} {offered:>10} {result['request_throughput']:>11.3f} "
            f"{result['output_throughput']:>10.1f} {result['median_normalized_latency_ms']:>10.1f} "
            f"{result['median_ttft_ms']:>10.1f}"
        )
