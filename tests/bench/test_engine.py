"""`orca bench engine`, and the log of a live server from which `orca simulate` learns."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from orca_bench.calibration import calibrate
from orca_bench.cost import Work
from support.commands import outcomes
from support.served import Served, eventually

BENCH = (sys.executable, "-m", "orca_master.cli", "bench", "engine")
NAME = "gpt2-head64-tied"


@pytest.mark.exhaustive
def test_batches_of_equal_requests(checkpoint, tmp_path):
    path = tmp_path / "engine.json"
    options = ["--batch-size", "1", "3", "--input-len", "5", "9", "--output-len", "4", "--repeat", "3"]
    partitions = ["-pp", "2", "--dtype", "float32", "--seed", "5", "--output", str(path)]
    done = subprocess.run(
        [*BENCH, str(checkpoint(NAME)), *options, *partitions], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    assert [(row["input_len"], row["batch_size"]) for row in found["rows"]] == [(5, 1), (5, 3), (9, 1), (9, 3)]
    for row in found["rows"]:
        # Both medians of three runs are of the same run: the throughput falls as the time rises.
        assert 0 < row["first_ms"] < row["batch_ms"]
        assert row["output_throughput"] == pytest.approx(row["batch_size"] * 4 / row["batch_ms"] * 1e3)
    for key in ("date", "hardware", "versions", "command", "seed"):
        assert key in found, key
    assert done.stdout.splitlines()[1].split()[:2] == ["batch", "input"]


MISTAKES = [
    (["/nowhere"], "no config.json: a Hugging Face"),
    ([".", "--batch-size", "0"], "is not a whole number"),
    ([".", "--output", "/nowhere/figures.json"], "is not a file in a folder that exists"),
    (["examples/demo-model", "--input-len", "2000", "--output-len", "2"], "exceeds the model's 1024 positions"),
]


@pytest.fixture(scope="module")
def outcomes_of_mistakes() -> dict[tuple[str, ...], tuple[int, str]]:
    """Return exit code and standard error of every command of MISTAKES, by its options."""
    found = outcomes([["bench", "engine", *options] for options, _ in MISTAKES])
    return {tuple(options): outcome for (options, _), outcome in zip(MISTAKES, found, strict=True)}


@pytest.mark.parametrize(("options", "words"), MISTAKES)
def test_mistakes_end_with_one_line(outcomes_of_mistakes, options, words):
    code, errors = outcomes_of_mistakes[tuple(options)]
    assert code == 2
    assert words in errors
    assert len(errors.strip().splitlines()) == 1


@pytest.mark.exhaustive
def test_a_live_server_calibrates_the_simulator(checkpoint, tmp_path):
    """The log has every iteration once, with its work and both stages, and costs can be fitted to it."""
    import httpx

    log = tmp_path / "iterations.jsonl"
    served = Served([str(checkpoint(NAME)), "-pp", "2", "--dtype", "float32", "--iteration-log", str(log)])
    try:
        served.wait_ready()
        for count in (1, 3, 9):
            body = {"prompt": [[7] * 11, [8] * 5], "max_tokens": count, "temperature": 0, "ignore_eos": True}
            httpx.post(f"{served.url}/v1/completions", json=body, timeout=60).raise_for_status()
        assert eventually(lambda: len(log.read_text().splitlines()) >= 20)
    finally:
        served.stop()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["sequence"] for line in lines] == list(range(1, len(lines) + 1))
    prompts = [count for line in lines for count in line["num_tokens"] if count > 1]
    assert sorted(prompts) == [5, 5, 5, 11, 11, 11]
    for line in lines:
        (begin, end), (after, done) = line["stages"]
        assert begin < end
        assert after < done
    cost = calibrate(log)
    assert len(cost.stages) == 2
    assert 0 < cost.stage_seconds(0, [Work(1, 8)]) < 5


@pytest.mark.exhaustive
def test_a_log_that_cannot_be_written(checkpoint):
    serve = (*BENCH[:-2], "serve", str(checkpoint(NAME)), "--port", "0")
    done = subprocess.run(
        [*serve, "--iteration-log", "/nowhere/log"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--iteration-log /nowhere/log: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr
