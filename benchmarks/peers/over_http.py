"""Compares `orca serve` with vLLM's server under the same open-loop load: latencies at 50, 80 and 95 % of the peak.

    python benchmarks/peers/over_http.py --output over-http.json
    python benchmarks/peers/over_http.py --servers orca "orca --target-itl 100" vllm_cpu:compiled

A server is a setting of orca_bench.peer_settings, with options of the server after it. All servers run with the same
model and tokenizer on the same pinned core; the client uses another core. They are measured alternately, each load
`--rounds` times. Reported: medians. A server's peak is its throughput when all requests arrive at once; with
`--of lowest` all servers get the same rates, fractions of the lowest peak.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environments import environment_of, library
from orca_bench.open_loop import measure
from orca_bench.peer_settings import SETTINGS
from orca_bench.random_models import VOCABULARY, save_model
from orca_bench.traces import shortened, synthetic, with_arrivals
from process import end_session
from run import begin, options
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

READY_SECONDS = 300.0
ASK_AGAIN_SECONDS = 1.0
"""Period of the requests that wait for a server's start, because the servers signal readiness differently."""
SERVED = ("orca", "vllm_cpu", "vllm_cpu:preload", "vllm_cpu:compiled")
"""The settings of which this program can start a server."""
COMPARED = ("median_normalized_latency_ms", "median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms")


def save_tokenizer(path: Path) -> None:
    """Add a tokenizer with one word per token."""
    words = Tokenizer(models.WordLevel({f"w{index}": index for index in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0").save_pretrained(path)


def server(value: str) -> str:
    """Return an argument of `--servers`. Raises argparse.ArgumentTypeError if it does not begin with a setting."""
    if value.partition(" ")[0] not in SERVED:
        raise argparse.ArgumentTypeError(f"{value!r} does not begin with one of {', '.join(SERVED)}")
    return value


def command(name: str, python: Path, path: Path, arguments: argparse.Namespace, port: int) -> list[str]:
    """Return the command line of a server, with the same limits for all servers."""
    size = str(arguments.batch_size)
    setting, *options = name.split()
    options += ["--port", str(port), "--dtype", arguments.dtype, "--no-enable-prefix-caching"]
    if setting == "orca":
        limits = ["--max-batch-size", size, "--disable-log-requests"]
        return [str(python), "-m", "orca_master.cli", "serve", str(path), *limits, *options]
    limits = ["--max-num-seqs", size, "--max-model-len", "1024"]
    limits += [] if SETTINGS[setting].compiled else ["--enforce-eager"]
    program = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
    return [*program, "--model", str(path), "--served-model-name", path.name, *limits, *options]


@contextlib.contextmanager
def serving(name: str, path: Path, arguments: argparse.Namespace, core: int) -> Iterator[str]:
    """Start a server on one core; yield its URL once it answers. Raise RuntimeError with the end of its log."""
    with socket.socket() as free, tempfile.TemporaryFile("w+") as log:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        setting = SETTINGS[name.partition(" ")[0]]
        python = environment_of(setting.engine, folder=arguments.environments)
        preload = [library(python, each) for each in setting.preload]
        process = subprocess.Popen(
            ["taskset", "--cpu-list", str(core), *command(name, python, path, arguments, port)],
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                "VLLM_CPU_KVCACHE_SPACE": "2",
                "VLLM_CPU_OMP_THREADS_BIND": str(core),
                **({"LD_PRELOAD": ":".join(preload)} if preload else {}),
            },
        )
        url = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + READY_SECONDS
            while not _answers(f"{url}/v1/completions", path.name):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"{name} does not serve: {log.read()[-2000:]}")
                time.sleep(ASK_AGAIN_SECONDS)
            yield url
        finally:
            end_session(process)


def _answers(url: str, model: str) -> bool:
    body = json.dumps({"model": model, "prompt": [1, 2], "max_tokens": 1}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def main() -> None:
    """Print a line for each server and load, and write all results."""
    parser = options(__doc__ or "", "llama", 60, 3)
    parser.add_argument("--servers", nargs="+", default=["orca", "vllm_cpu"], type=server, metavar="SERVER")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--scale", type=float, default=0.5, help="factor of the paper's lengths (0.5)")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.8, 0.95], help="fractions of the peak")
    parser.add_argument(
        "--of", default="own", choices=("own", "lowest"), help="peak of each server, or the lowest (own)"
    )
    arguments = parser.parse_args()
    facts = begin(arguments.seed)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    requests = shortened(synthetic("paper", arguments.requests, arguments.seed), arguments.scale)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / arguments.model
        save_model(path, arguments.model)
        save_tokenizer(path)
        urls = {name: stack.enter_context(serving(name, path, arguments, cores[-1])) for name in arguments.servers}

        def run(name: str, rate: float) -> dict[str, Any]:
            return measure(name, urls[name], path.name, with_arrivals(requests, rate, 1.0, arguments.seed))

        peaks: dict[str, list[float]] = {name: [] for name in urls}
        for _ in range(arguments.rounds + 1):
            for name in urls:
                peaks[name].append(run(name, float("inf"))["request_throughput"])
                print(f"{name}: {peaks[name][-1]:.2f} requests/s of requests that arrive at once", flush=True)
        peak = {name: statistics.median(values[1:]) for name, values in peaks.items()}  # the first is a warm-up
        reference = peak if arguments.of == "own" else dict.fromkeys(peak, min(peak.values()))
        for load in arguments.loads:
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in urls}
            for _ in range(arguments.rounds):
                for name in urls:
                    runs[name].append(run(name, load * reference[name]))
            for name, results in runs.items():
                row = {"server": name, "load": load, "peak": peak[name], "request_rate": load * reference[name]}
                row |= {key: statistics.median(each[key] for each in results) for key in COMPARED}
                row["all"] = {key: [each[key] for each in results] for key in COMPARED}
                rows.append(row)
                medians = ", ".join(f"{key} {row[key]:.1f}" for key in COMPARED)
                print(f"{name}: at {load:.0%} of {reference[name]:.2f} requests/s: {medians}", flush=True)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps({**facts, "rows": rows, "peaks": peaks}, indent=1) + "\n")


if __name__ == "__main__":
    main()
