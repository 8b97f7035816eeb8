"""`orca bench serve` against a server that knows what it did, and against `orca serve`."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest
from orca_bench.serve import WARM_UP_REQUESTS
from orca_bench.traces import synthetic
from support.commands import outcomes
from support.served import serve

ROOT = Path(__file__).parents[2]
FIRST_SECONDS, TOKEN_SECONDS = 1.0, 0.1
"""Long, so that 5 % of them is more than what a busy machine adds to the median."""


@contextlib.contextmanager
def stub_server(first: float, gap: float):
    process = subprocess.Popen(
        [sys.executable, "-m", "support.stub_server", str(first), str(gap)],
        cwd=ROOT / "tests", stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def slow():
    with stub_server(FIRST_SECONDS, TOKEN_SECONDS) as url:
        yield url


@pytest.fixture(scope="module")
def stub():
    with stub_server(0.01, 0.002) as url:
        yield url


def bench(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "orca_master.cli", "bench", "serve", *arguments],
        capture_output=True, text=True, timeout=200, check=False, env={**os.environ, "OPENAI_API_KEY": ""},
    )  # fmt: skip
    assert done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done


def recorded(url: str) -> tuple[list[dict], float]:
    """Return the measured requests since the last call, and the server's lag in milliseconds."""
    with urllib.request.urlopen(f"{url}/record", timeout=30) as answer:
        record = json.load(answer)
        return record["requests"][WARM_UP_REQUESTS:], record["lag"] * 1e3


@pytest.mark.exhaustive
@pytest.mark.parametrize(("rate", "count"), [(5, 25), (50, 150), (200, 500)])
def test_the_figures_are_the_servers_own(slow, tmp_path, rate, count):
    """Within 5 % of what the server says it did, and the lags of client and server; both look at the same clock."""
    recorded(slow)
    options = ("--trace", "homogeneous", "--input-len", "8", "--output-len", "10", "--num-requests", str(count))
    path = tmp_path / "out.json"
    bench(slow, *options, "--request-rate", str(rate), "--output", str(path), "--no-progress")
    found, (truth, server_lag) = json.loads(path.read_text()), recorded(slow)
    assert (found["completed"], found["failed"], len(truth)) == (count, 0, count)
    firsts = [(entry["sent"][0] - entry["arrived"]) * 1e3 for entry in truth]
    gaps = [(b - a) * 1e3 for entry in truth for a, b in pairwise(entry["sent"])]
    normalised = [(entry["sent"][-1] - entry["arrived"]) * 1e3 / entry["output"] for entry in truth]
    for figure, times in (("ttft", firsts), ("itl", gaps), ("normalized_latency", normalised)):
        expected = statistics.median(times)
        # On a busy machine client and server wait for their turn.
        bound = 0.05 * expected + found["max_lag_ms"] + server_lag
        assert found[f"median_{figure}_ms"] == pytest.approx(expected, abs=bound)
    assert found["total_output_tokens"] == sum(entry["output"] for entry in truth) == 10 * count
    assert found["total_input_tokens"] == 8 * count
    # The loop is open: requests come when the trace says, give or take the lag that is reported (and a busy machine),
    # though none has been answered by then.
    begin = min(entry["arrived"] for entry in truth)
    last = max(entry["arrived"] for entry in truth) - begin
    assert abs(last - found["arrivals"][-1]) < 1.0 + (found["max_lag_ms"] + server_lag) / 1e3


@pytest.mark.exhaustive
def test_the_same_seed_offers_the_same_requests(stub, tmp_path):
    offered = []
    for seed in (1, 1, 2):
        recorded(stub)
        path = tmp_path / "out.json"
        bench(stub, "--num-requests", "8", "--seed", str(seed), "--request-rate", "100", "--output", str(path),
              "--max-concurrency", "8", "--no-progress")  # fmt: skip
        found = json.loads(path.read_text())
        truth = sorted((entry["input"], entry["output"]) for entry in recorded(stub)[0])
        offered.append((found["input_lens"], found["arrivals"], truth))
        assert sorted(zip(found["input_lens"], found["output_lens"], strict=True)) == truth
    assert offered[0] == offered[1] != offered[2]


def test_no_prompt_is_sent_twice(stub):
    """Neither at another rate nor before the first: a prefix cache would answer the second time."""
    urllib.request.urlopen(f"{stub}/record", timeout=30).close()
    bench(stub, "--num-requests", "3", "--request-rate", "100", "200", "--seed", "4", "--no-progress")
    with urllib.request.urlopen(f"{stub}/record", timeout=30) as answer:
        sent = json.load(answer)["requests"]
    assert len(sent) == WARM_UP_REQUESTS + 2 * 3
    assert len({tuple(entry["prompt"]) for entry in sent}) == len(sent)
    first, second = ({(entry["input"], entry["output"]) for entry in sent[begin : begin + 3]} for begin in (2, 5))
    assert first == second
    expected = {request.prompt for request in synthetic("paper", 3, 4)}
    assert {tuple(entry["prompt"]) for entry in sent[2:5]} == expected, "the first rate has the seed's own prompts"


@pytest.mark.exhaustive
def test_a_sweep_its_curve_and_vllms_keys(stub, tmp_path):
    path, curve = tmp_path / "out.json", tmp_path / "curve.svg"
    done = bench(
        stub, "--trace", "homogeneous", "--output-len", "4", "--num-requests", "10", "--request-rate", "20", "50",
        "--slo", "ttft:10000,tpot:10000", "--output", str(path), "--plot", str(curve),
    )  # fmt: skip
    slow, fast = json.loads(path.read_text())
    assert (slow["request_rate"], fast["request_rate"]) == (20, 50)
    for key in (
        "date", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency", "duration", "completed",
        "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput", "output_throughput",
        "total_token_throughput", "input_lens", "output_lens", "ttfts", "itls", "errors", "mean_ttft_ms",
        "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "median_tpot_ms", "p99_tpot_ms", "mean_itl_ms",
        "median_itl_ms", "p99_itl_ms", "median_e2el_ms", "p90_e2el_ms", "median_normalized_latency_ms", "seed",
        "command", "versions", "hardware",
    ):  # fmt: skip
        assert key in slow, key
    assert slow["request_goodput"] == slow["request_throughput"]
    assert curve.read_text().lstrip().startswith("<?xml")
    assert "requests/s within the limits" in done.stdout
    tight = bench(stub, "--trace", "homogeneous", "--output-len", "4", "--num-requests", "4", "--slo", "ttft:1",
                  "--no-progress").stdout  # fmt: skip
    assert "requests/s within the limits                  0.00" in tight


@pytest.mark.exhaustive
def test_failures_are_counted_by_kind(stub, tmp_path):
    few = ("--trace", "homogeneous", "--num-requests", "3", "--no-progress")
    assert "HTTP 500: 3" in bench(stub, *few, "--model", "broken", code=1).stdout
    assert "truncated: 3" in bench(stub, *few, "--model", "cut", code=1).stdout
    assert "timeout: 3" in bench(stub, *few, "--model", "silent", "--timeout", "1", code=1).stdout
    assert "3" in bench("http://127.0.0.1:9", *few, "--model", "x", code=1).stdout


def test_mistakes_end_with_one_line(stub, tmp_path):
    bad, timed = tmp_path / "bad.csv", tmp_path / "timed.csv"
    timed.write_text("arrival,input,output\n0,3,2\n")
    bad.write_text("a,b\n1,2\n")
    mistakes = {
        "NAME:MILLISECONDS": [stub, "--slo", "ttft"],
        "is not a number above 0": [stub, "--request-rate", "0"],
        "No such file": [stub, "--trace", str(tmp_path / "none.json")],
        "none of the columns": [stub, "--trace", str(bad)],
        "(with arrivals) ignores --request-rate": [stub, "--trace", str(timed), "--request-rate", "1"],
        "see --model": ["http://127.0.0.1:9"],
        "'sweep.txt' does not end with .svg": [stub, "--plot", "sweep.txt"],
    }
    found = outcomes([["bench", "serve", *arguments] for arguments in mistakes.values()])
    for words, (code, errors) in zip(mistakes, found, strict=True):
        assert (code, len(errors.strip().splitlines())) == (2, 1)
        assert words in errors


@pytest.mark.exhaustive
def test_recorded_traces(stub, tmp_path):
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,3,2\n2023-11-16 18:15:46.9805900,5,4\n"
    )
    path = tmp_path / "out.json"
    recorded(stub)
    bench(stub, "--trace", str(azure), "--output", str(path), "--no-progress")
    found, truth = json.loads(path.read_text()), recorded(stub)[0]
    assert [(entry["input"], entry["output"]) for entry in truth] == [(3, 2), (5, 4)]
    assert found["arrivals"] == [0.0, pytest.approx(0.3)]
    assert found["request_rate"] == "trace"
    chats = tmp_path / "chats.json"
    turns = [{"from": "human", "value": "Who are you"}, {"from": "gpt", "value": "I am a model of language"}]
    chats.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}, {"conversations": turns}]))
    bench(stub, "--trace", str(chats), "--no-progress")
    assert [(entry["input"], entry["output"]) for entry in recorded(stub)[0]] == [(len("Who are you"), 6)] * 2


@pytest.mark.exhaustive
def test_against_orca_serve(tmp_path):
    path = tmp_path / "out.json"
    with serve(ROOT / "examples" / "demo-model", "-pp", "2") as served:
        bench(served.url, "--trace", "homogeneous", "--input-len", "20", "--output-len", "16", "--num-requests", "12",
              "--request-rate", "10", "--output", str(path), "--no-progress")  # fmt: skip
    found = json.loads(path.read_text())
    assert (found["completed"], found["failed"], found["model_id"]) == (12, 0, "demo-model")
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (240, 192)
    assert all(len(gaps) == 15 for gaps in found["itls"]), "every token is an event"
