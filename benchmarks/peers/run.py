"""Compares ORCA with its peers on one machine in one session: the paper's trace, all requests at once, paired runs.

    python benchmarks/peers/run.py --output result.json
    python benchmarks/peers/run.py --peers orca --before main~20    # the same engine at two commits

Each peer has its own virtual environment (build/peers, created on first use from the metadata at the head of its file,
PEP 723) and is loaded once per column; then the peers run alternately, so that each round pairs every two of them.
Reported: the median over the rounds of generated tokens per second, and of the ratio to ORCA within a round, with
its minimum and maximum; a ratio is a tie if 1 lies between them. Also reported: two lower bounds of the time
(floors.floor_seconds) as the rates `floor`, from the reads of the weights in decode and the FLOPs of the prompts, and
`floor_with_products`, which also counts the matrix products of decode where they take longer than the reads.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import torch
from orca_bench.circumstances import circumstances, line
from orca_bench.floors import floor_seconds
from orca_bench.random_models import save_model
from orca_bench.servers import unwind_on_sigterm
from orca_bench.traces import synthetic

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PEERS = ("orca", "vllm_cpu", "openvino_genai", "transformers_generate", "transformers_continuous")
EXIT_SECONDS = 20.0
REQUIRED = """
import importlib.metadata, json, sys
print(json.dumps([entry for name in sys.argv[1:] for entry in importlib.metadata.requires(name)]))
"""


class Peer:
    """The process of a peer; raises RuntimeError with the last line of its log when it ends."""

    def __init__(self, name: str, program: str, python: Path, job: Path, cores: set[int]) -> None:
        self.name = name
        environment = {**os.environ, "OMP_NUM_THREADS": str(len(cores)), "HF_HUB_OFFLINE": "1"}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  lives as long as the peer
        self._process = subprocess.Popen(
            [
                "taskset",
                "--cpu-list",
                ",".join(map(str, sorted(cores))),
                str(python),
                str(FOLDER / f"{program}.py"),
                str(job),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            self._expect("ready")
        except BaseException:
            self.close()
            raise

    def run(self) -> float:
        """Run the job once; return the seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        return float(json.loads(self._expect("seconds"))["seconds"])

    def close(self) -> None:
        """End the process and its children."""
        end_session(self._process)

    def _expect(self, word: str) -> str:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            if word in text:
                return text
        self._log.seek(0)
        raise RuntimeError(f"{self.name}: {(self._log.read().strip().splitlines() or ['ended'])[-1]}")


def end_session(process: subprocess.Popen[str]) -> None:
    """End a session leader and its children, because vLLM's child processes outlive their parent."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_SECONDS)


def environment_of(name: str, revision: str | None = None) -> Path:
    """Return the Python interpreter of a peer's environment; create the environment if it does not exist.

    ORCA itself is reinstalled each time, because its files may have changed: from the working tree, or from a commit.
    """
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    block = re.search(r"^# /// script\n(.*?)^# ///$", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    metadata = tomllib.loads(re.sub(r"^# ?", "", block[1], flags=re.MULTILINE))
    home = ROOT / "build" / "peers" / (f"{name}-{revision}" if revision else name)
    python, done, source = home / "bin" / "python", home / "installed", home / "source"
    requirements = [
        entry.format(repository=(source if revision else ROOT).as_uri()) for entry in metadata["dependencies"]
    ]
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    if not done.exists():
        print(f"creating the environment of {home.name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([*pip, "torch==2.13.0"], check=True)
        if revision:
            subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(source)], check=True)
            subprocess.run(["git", "-C", str(source), "checkout", "--quiet", "--detach", revision], check=True)
        if without := metadata.get("without"):
            requirements = _without(pip, python, requirements, without)
        subprocess.run([*pip, "torch==2.13.0", *requirements], check=True)
        done.touch()
    elif requirements != metadata["dependencies"]:
        subprocess.run([*pip, "--no-deps", "--force-reinstall", *requirements], check=True)
    return python


def _without(pip: list[str], python: Path, requirements: list[str], excluded: list[str]) -> list[str]:
    """Install packages without dependencies; return these, except those that would replace the CPU build of torch."""
    subprocess.run([*pip, "--no-deps", *requirements], check=True)
    names = [re.split(r"[=<>@ ]", entry)[0] for entry in requirements]
    program = (
        "import importlib.metadata as m, json, sys; print(json.dumps([r for n in sys.argv[1:] for r in m.requires(n)]))"
    )
    printed = subprocess.run([str(python), "-c", program, *names], check=True, capture_output=True, text=True).stdout
    skipped = re.compile(rf"(torch|setuptools|{'|'.join(excluded)})\b(?!-)")
    return [entry for entry in json.loads(printed) if "extra ==" not in entry and not skipped.match(entry)]


def commit(revision: str) -> str:
    """Return the short hash of a commit of this repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "--verify", "--quiet", f"{revision}^{{commit}}"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode:
        raise argparse.ArgumentTypeError(f"{revision!r} is not a commit of this repository")
    return result.stdout.strip()


def column(arguments: argparse.Namespace, folder: Path, dtype: str, size: int, cores: set[int]) -> dict[str, Any]:
    """Run one column of the table."""
    trace = synthetic("paper", arguments.requests, arguments.seed)
    tokens = sum(request.output_length for request in trace)
    job = folder / "job.json"
    model = folder / arguments.model
    job.write_text(json.dumps({
        "model": str(model), "dtype": dtype, "batch_size": size, "threads": len(cores),
        "device": arguments.device,
        "prompts": [request.prompt for request in trace], "outputs": [request.output_length for request in trace],
    }))  # fmt: skip
    peers: list[Peer] = []
    speeds: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    try:
        for name, revision in [(name, None) for name in arguments.peers] + [("orca", r) for r in arguments.before]:
            try:
                python = environment_of(name, revision)
                peers.append(Peer(f"{name}-{revision}" if revision else name, name, python, job, cores))
                peers[-1].run()  # warm-up
            except (RuntimeError, subprocess.CalledProcessError) as error:
                failed[name] = str(error)
        for _ in range(arguments.rounds):
            for peer in peers:
                speeds.setdefault(peer.name, []).append(tokens / peer.run())
    finally:
        for peer in peers:
            peer.close()
    torch.set_num_threads(len(cores))
    limit, with_products = (tokens / seconds for seconds in floor_seconds(trace, size, dtype, arguments.device))
    results: dict[str, Any] = {
        "dtype": dtype,
        "batch_size": size,
        "threads": len(cores),
        "floor": limit,
        "floor_with_products": with_products,
        "failed": failed,
    }
    for name, values in speeds.items():
        ratios = [orca / peer for orca, peer in zip(speeds["orca"], values, strict=True)]
        speed = statistics.median(values)
        results[name] = {
            "tokens_per_second": speed, "of_floor": speed / limit, "of_floor_with_products": speed / with_products,
            "orca_is": statistics.median(ratios), "spread": [min(ratios), max(ratios)], "all": values,
        }  # fmt: skip
        tie = " (tie)" if name != "orca" and min(ratios) <= 1 <= max(ratios) else ""
        print(
            f"{dtype} batch {size} threads {len(cores)}: {name} {speed:.0f} tokens/s, {speed / limit:.0%} of the floor "
            f"({speed / with_products:.0%} with products); ORCA is {statistics.median(ratios):.2f} x "
            f"[{min(ratios):.2f}, {max(ratios):.2f}]{tie}",
            flush=True,
        )
    for name, reason in failed.items():
        print(f"{dtype} batch {size} threads {len(cores)}: {name} failed: {reason}", flush=True)
    return results


def options(description: str, model: str, requests: int, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options of all comparisons with peers."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("gpt2", "llama"), default=model)
    parser.add_argument("--requests", type=int, default=requests)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    return parser


def begin(seed: int) -> dict[str, Any]:
    """Print and return the circumstances; let SIGTERM end started processes from now on."""
    unwind_on_sigterm()
    facts = circumstances(seed)
    print(line(facts), flush=True)
    return facts


def main() -> None:
    """Print a line for each cell and write all results."""
    parser = options(__doc__ or "", "gpt2", 32, 7)
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS)
    parser.add_argument(
        "--before",
        type=commit,
        nargs="*",
        default=[],
        metavar="REVISION",
        help="also compare ORCA at these commits",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: not supported by vllm_cpu and openvino_genai"
    )
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    facts = begin(arguments.seed)
    available = sorted(os.sched_getaffinity(0))
    columns = []
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder) / arguments.model, arguments.model)
        for threads in arguments.threads:
            for dtype in arguments.dtypes:
                for size in arguments.batch_sizes:
                    columns.append(column(arguments, Path(folder), dtype, size, set(available[-threads:])))
    if arguments.output is not None:
        arguments.output.write_text(
            json.dumps({**facts, "model": arguments.model, "columns": columns}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
