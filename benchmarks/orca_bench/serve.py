"""`orca bench serve URL`: open-loop load on an OpenAI-compatible server, one run per request rate.

Order of events: options → model name from `/v1/models` → warm-up → for each rate: create requests from the seed, send,
report.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import aiohttp
from orca_protos.command_line import OneLineParser
from tqdm import tqdm

from orca_bench.circumstances import circumstances
from orca_bench.client import Outcome
from orca_bench.open_loop import run
from orca_bench.options import add_trace_options, output_file, positive, rate, read_requests
from orca_bench.plot import plot_curves, plot_file
from orca_bench.report import parse_slo, report, table
from orca_bench.traces import TracedRequest, TraceError, with_arrivals, with_new_prompts

WARM_UP_REQUESTS = 2
"""Unmeasured requests before the first rate."""


def main(argv: list[str]) -> int:
    """Run `orca bench serve`: exit code 0, 1 if a request failed, 2 for invalid options or input."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        slo = parse_slo(arguments.slo) if arguments.slo else {}
        requests, own_arrivals = read_requests(parser, argv)
    except (TraceError, ValueError) as error:
        parser.error(str(error))
    key = arguments.api_key or os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = arguments.url.rstrip("/").removesuffix("/v1")
    try:
        model = arguments.model or asyncio.run(_model(url, headers))
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, IndexError) as error:
        parser.error(f"{url}/v1/models does not name a model ({type(error).__name__}: {error}): see --model")
    warm_up = with_new_prompts(requests[:WARM_UP_REQUESTS], arguments.seed, "warm-up")
    _send(with_arrivals(warm_up, float("inf"), 1.0, arguments.seed), url, model, headers, arguments, lambda _: None)
    runs = []
    for index, offered in enumerate([None] if own_arrivals else arguments.request_rate):
        # Equal prompts at a later rate would measure the server's prefix cache.
        timed = with_new_prompts(requests, arguments.seed, f"rate {index}") if index else requests
        if offered is not None:
            timed = with_arrivals(timed, offered, arguments.burstiness, arguments.seed)
        outcomes = _load(timed, url, model, headers, arguments)
        figures = {"request_rate": offered or "trace", **report(outcomes, slo)}
        runs.append({**figures, **_lists(outcomes)})
        print(f"\n{url}, {model}, {arguments.trace}, {figures['request_rate']} requests/s offered\n{table(figures)}")
    _write(runs, url, model, arguments)
    return 1 if any(run["failed"] for run in runs) else 0


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="orca bench serve",
        description="Sends load to an OpenAI-compatible server and measures its latencies. "
        f"{WARM_UP_REQUESTS} unmeasured requests come first, and each request rate has its own prompts.",
    )
    parser.add_argument("url", help="base URL, such as http://127.0.0.1:8000")
    parser.add_argument("--model", help="name of the model (the server's first)")
    add_trace_options(parser)
    parser.add_argument(
        "--request-rate",
        type=rate,
        nargs="+",
        default=[float("inf")],
        help="requests per second; several values make a sweep (inf)",
    )
    parser.add_argument("--max-concurrency", type=positive, help="maximum concurrent requests (no limit: an open loop)")
    parser.add_argument("--slo", help="latency limits of the goodput in ms, such as ttft:500,tpot:50")
    parser.add_argument("--timeout", type=positive, default=600, metavar="SECONDS", help="timeout of a request (600)")
    parser.add_argument("--api-key", help="API key of the server (the environment variable OPENAI_API_KEY)")
    parser.add_argument(
        "--output", type=output_file, metavar="FILE.json", help="file for all figures, versions, command and seed"
    )
    parser.add_argument("--plot", type=plot_file, metavar="FILE.svg", help="file for a plot of the sweep, .svg or .png")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    return parser


async def _model(url: str, headers: dict[str, str]) -> str:
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
        session.get(f"{url}/v1/models") as response,
    ):
        response.raise_for_status()
        return str((await response.json())["data"][0]["id"])


def _load(
    requests: list[TracedRequest], url: str, model: str, headers: dict[str, str], arguments: argparse.Namespace
) -> list[Outcome]:
    with tqdm(total=len(requests), unit="request", disable=arguments.no_progress, file=sys.stderr) as bar:
        return _send(requests, url, model, headers, arguments, lambda _: bar.update())


def _send(
    requests: list[TracedRequest],
    url: str,
    model: str,
    headers: dict[str, str],
    arguments: argparse.Namespace,
    on_end: Callable[[Outcome], object],
) -> list[Outcome]:
    target, timeout = f"{url}/v1/completions", float(arguments.timeout)
    return asyncio.run(run(requests, target, model, on_end, arguments.max_concurrency, timeout, headers))


def _lists(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return the lists of per-request values, with vLLM's keys and units (seconds)."""
    return {
        "input_lens": [outcome.num_input or outcome.request.input_length for outcome in outcomes],
        "output_lens": [outcome.num_output or len(outcome.tokens) for outcome in outcomes],
        "arrivals": [outcome.request.arrival for outcome in outcomes],
        "ttfts": [outcome.tokens[0] - outcome.sent if outcome.tokens else 0.0 for outcome in outcomes],
        "itls": [[later - earlier for earlier, later in pairwise(outcome.tokens)] for outcome in outcomes],
        "errors": [outcome.error for outcome in outcomes],
    }


def _write(runs: list[dict[str, Any]], url: str, model: str, arguments: argparse.Namespace) -> None:
    shared = {
        **circumstances(arguments.seed),
        "backend": "openai",
        "endpoint": url,
        "model_id": model,
        "num_prompts": arguments.num_requests,
        "trace": arguments.trace,
        "burstiness": arguments.burstiness,
        "max_concurrency": arguments.max_concurrency,
        "slo": arguments.slo,
    }
    if arguments.output is not None:
        # A single run is written as vLLM's flat object, a sweep as a list of such objects.
        results = [shared | single for single in runs]
        arguments.output.write_text(json.dumps(results[0] if len(results) == 1 else results, indent=1))
    if arguments.plot is not None:
        plot_curves({model: runs}, f"{arguments.trace} trace", arguments.plot)
