"""Compares ORCA with its peers on one machine in one session: the paper's trace, all requests at once, paired runs.

    python benchmarks/peers/run.py --output result.json
    python benchmarks/peers/run.py --peers all --dtypes bfloat16    # every setting of orca_bench.peer_settings
    python benchmarks/peers/run.py --peers orca --before main~20    # the same engine at two commits
    python benchmarks/peers/run.py --shared-prefix 500    # caches of prefixes are on, in engines that have one

Each engine has its own virtual environment (environments.py); an engine whose environment cannot be made is named in
one line and left out. A cell is a number of threads, a type of the activations, a quantisation of the weights, and a
batch size; the settings with these weights are loaded once per cell, with ORCA's at the same precisions; then they run
alternately, so that each round pairs every two of them. Reported: for each setting the median over the rounds of
generated tokens per second, and ORCA's ratio to it (orca_bench.peer_table); at the end the best setting of each engine.
For unquantised weights also two lower bounds of the time (floors.floor_seconds) as the rates `floor`, from the reads of
the weights in decode and the FLOPs of the prompts, and `floor_with_products`, which also counts the matrix products of
decode where they take longer than the reads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from environments import ENVIRONMENTS, ROOT, EnvironmentFailed, environment_of, library
from orca_bench.circumstances import circumstances, line
from orca_bench.floors import floor_seconds
from orca_bench.peer_settings import ALL, DEFAULT, SETTINGS, WEIGHTS, Setting, chosen, of_vendor, reference, vendor_of
from orca_bench.peer_table import Column, ratios, table
from orca_bench.random_models import save_model
from orca_bench.servers import unwind_on_sigterm
from orca_bench.traces import TracedRequest, shared_prefixes, synthetic
from process import Peer


@dataclass(slots=True)
class Plan:
    """The settings of a session with the interpreters and preloaded libraries of those that can run here.

    `revisions`: interpreters of ORCA at earlier commits. `failed`: reasons by the names of the other settings.
    """

    settings: list[Setting]
    pythons: dict[str, Path] = field(default_factory=dict)
    preloads: dict[str, list[str]] = field(default_factory=dict)
    revisions: dict[str, Path] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cell:
    """What all columns of a cell have in common."""

    threads: int
    dtype: str
    weights: str
    batch_size: int

    def __str__(self) -> str:
        """Return the head of the cell's lines."""
        quantised = "" if self.weights == "none" else f", {self.weights} weights"
        return f"{self.dtype}{quantised} batch {self.batch_size} threads {self.threads}"


def commit(revision: str) -> str:
    """Return the short hash of a commit of this repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "--verify", "--quiet", f"{revision}^{{commit}}"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode:
        raise argparse.ArgumentTypeError(f"{revision!r} is not a commit of this repository")
    return result.stdout.strip()


def prepare(arguments: argparse.Namespace) -> Plan:
    """Create the environments one after the other; print a line for each setting that cannot run here."""
    settings, unfit = of_vendor(chosen(arguments.peers), vendor_of())
    plan = Plan(settings, failed=unfit)
    broken: dict[str, str] = {}
    for setting in settings:
        try:
            if setting.engine in broken:
                raise EnvironmentFailed(broken[setting.engine])
            if setting.engine not in plan.pythons:
                plan.pythons[setting.engine] = environment_of(setting.engine, folder=arguments.environments)
            python = plan.pythons[setting.engine]
            plan.preloads[setting.name] = [library(python, name) for name in setting.preload]
        except EnvironmentFailed as error:
            plan.failed[setting.name] = str(error)
            if setting.engine not in plan.pythons:
                broken[setting.engine] = str(error)
    for revision in arguments.before:
        try:
            plan.revisions[revision] = environment_of("orca", revision, arguments.environments)
        except EnvironmentFailed as error:
            plan.failed[f"orca@{revision}"] = str(error)
    for name, reason in plan.failed.items():
        print(f"{name} is left out: {reason}", flush=True)
    return plan


def trace_of(arguments: argparse.Namespace) -> list[TracedRequest]:
    """Return the requests of a run."""
    if arguments.shared_prefix:
        return shared_prefixes(arguments.requests, arguments.seed, arguments.shared_prefix)
    return synthetic("paper", arguments.requests, arguments.seed)


def measure(arguments: argparse.Namespace, plan: Plan, cell: Cell, folder: Path) -> dict[str, Any]:
    """Run one cell of the table."""
    trace = trace_of(arguments)
    cores = set(sorted(os.sched_getaffinity(0))[-cell.threads :])
    tokens = sum(request.output_length for request in trace)
    settings = [setting for setting in plan.settings if setting.weights == cell.weights]
    loaded: list[tuple[Setting, Peer]] = []
    failed = {name: why for name, why in plan.failed.items() if _weights_of(name) == cell.weights}
    earlier = plan.revisions if cell.weights == "none" else {}
    speeds: dict[str, list[float]] = {}
    try:
        columns = [(setting, plan.pythons[setting.engine]) for setting in settings if setting.name not in failed]
        columns += [(Setting(f"orca@{revision}", "orca"), python) for revision, python in earlier.items()]
        for setting, python in columns:
            job = _write_job(folder, arguments, cell, setting, trace)
            try:
                peer = Peer(setting.name, setting.engine, python, job, cores, plan.preloads.get(setting.name, ()))
                loaded.append((setting, peer))
                peer.run()  # warm-up
            except RuntimeError as error:
                failed[setting.name] = str(error)
        for _ in range(arguments.rounds):
            for setting, peer in loaded:
                if setting.name not in failed:
                    try:
                        speeds.setdefault(setting.name, []).append(tokens / peer.run())
                    except RuntimeError as error:
                        failed[setting.name] = str(error)
    finally:
        for _, peer in loaded:
            peer.close()
    measured = [
        Column(setting.name, _engine(setting), reference(setting).name, speeds[setting.name])
        for setting, _ in loaded
        if setting.name not in failed
    ]
    return {**asdict(cell), "columns": measured, "failed": failed, **_floors(arguments, cell, trace, tokens)}


def _write_job(
    folder: Path, arguments: argparse.Namespace, cell: Cell, setting: Setting, trace: list[TracedRequest]
) -> Path:
    job = folder / "job.json"
    job.write_text(json.dumps({
        "model": str(folder / arguments.model), "dtype": cell.dtype, "batch_size": cell.batch_size,
        "threads": cell.threads, "device": arguments.device, "weights": setting.weights, "cache": setting.cache,
        "activations": setting.activations, "compiled": setting.compiled, "prefix_caching": arguments.shared_prefix > 0,
        "prompts": [request.prompt for request in trace], "outputs": [request.output_length for request in trace],
    }))  # fmt: skip
    return job


def _weights_of(name: str) -> str:
    return SETTINGS[name].weights if name in SETTINGS else "none"


def _engine(setting: Setting) -> str:
    """Return the engine's name in the table: ORCA at an earlier commit is an engine of its own."""
    return setting.name if "@" in setting.name else setting.engine


def _floors(arguments: argparse.Namespace, cell: Cell, trace: list[TracedRequest], tokens: int) -> dict[str, float]:
    if cell.weights != "none" or arguments.shared_prefix:
        return {}
    torch.set_num_threads(cell.threads)
    plain, with_products = floor_seconds(trace, cell.batch_size, cell.dtype, arguments.device)
    return {"floor": tokens / plain, "floor_with_products": tokens / with_products}


def show(plan: Plan, cell: Cell, result: dict[str, Any]) -> dict[str, Any]:
    """Print a line for each column of a cell, and for each that failed in it; return the cell for the output file."""
    columns: list[Column] = result["columns"]
    against = ratios(columns)
    written = {key: value for key, value in result.items() if key != "columns"}
    for column in columns:
        written[column.name] = {"tokens_per_second": column.speed, "all": list(column.speeds)}
        text = f"{cell}: {column.name} {column.speed:.0f} tokens/s"
        if "floor" in result:
            parts = {f"of_{key}": column.speed / result[key] for key in ("floor", "floor_with_products")}
            written[column.name] |= parts
            text += ", {:.0%} of the floor ({:.0%} with products)".format(*parts.values())
        if found := against.get(column.name):
            written[column.name] |= {
                "reference": column.reference, "orca_is": found.median, "spread": [found.low, found.high],
            }  # fmt: skip
            text += f"; {column.reference} is {found}"
        print(text, flush=True)
    for name, reason in result["failed"].items() - plan.failed.items():
        print(f"{cell}: {name} failed: {reason}", flush=True)
    return written


def options(description: str, model: str, requests: int, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options of all comparisons with peers."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("gpt2", "llama"), default=model)
    parser.add_argument("--requests", type=int, default=requests)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "--environments", type=Path, default=ENVIRONMENTS, help="folder of the engines' environments (build/peers)"
    )
    return parser


def begin(seed: int) -> dict[str, Any]:
    """Print and return the circumstances; let SIGTERM end started processes from now on."""
    unwind_on_sigterm()
    facts = circumstances(seed)
    print(line(facts), flush=True)
    return facts


def main() -> None:
    """Print a line for each column and a table of the best settings, and write all results."""
    parser = options(__doc__ or "", "gpt2", 32, 7)
    parser.add_argument(
        "--peers",
        nargs="+",
        default=DEFAULT,
        choices=(*SETTINGS, ALL),
        metavar="SETTING",
        help=f"choose from {', '.join(SETTINGS)}, {ALL} ({' '.join(DEFAULT)})",
    )
    parser.add_argument(
        "--before",
        type=commit,
        nargs="*",
        default=[],
        metavar="REVISION",
        help="also compare ORCA at these commits",
    )
    parser.add_argument(
        "--shared-prefix",
        type=int,
        default=0,
        metavar="TOKENS",
        help="the trace of prefix_caching.py, with prefixes of TOKENS tokens that are new in each round",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: only supported by orca and transformers"
    )
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=("float32", "bfloat16"))
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    facts = begin(arguments.seed)
    plan = prepare(arguments)
    results, written = [], []
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder) / arguments.model, arguments.model)
        for cell in [
            Cell(threads, dtype, weights, size)
            for threads in arguments.threads
            for dtype in arguments.dtypes
            for weights in WEIGHTS
            if any(setting.weights == weights for setting in plan.settings)
            for size in arguments.batch_sizes
        ]:
            results.append(measure(arguments, plan, cell, Path(folder)))
            written.append(show(plan, cell, results[-1]))
    print(f"\nThe best setting of each engine:\n\n{table(results)}", flush=True)
    if arguments.output is not None:
        document = {**facts, "model": arguments.model, "columns": written, "table": table(results)}
        arguments.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
