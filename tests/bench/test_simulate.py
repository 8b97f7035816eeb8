"""`orca simulate` as a command."""

from __future__ import annotations

import json
import sys
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest
from orca_bench.baselines.request_level import RequestLevel, RequestLevelSetup
from orca_bench.calibration import Measured, calibrate
from orca_bench.cost import HARDWARE, TABLE_1, Roofline, Work
from orca_bench.outcome import figures
from orca_bench.scheduling import OrcaScheduling, OrcaSetup
from orca_bench.simulate import main
from orca_bench.simulator import simulate
from orca_bench.traces import synthetic, with_arrivals
from support.terminal import Terminal


def test_a_sweep_can_be_repeated(tmp_path, capsys):
    results = []
    for name in ("a", "b"):
        path, curve = tmp_path / f"{name}.json", tmp_path / f"{name}.svg"
        options = ["--num-requests", "40", "--max-batch-size", "1", "8", "--request-rate", "0.5", "2", "--seed", "5"]
        assert main([*options, "--output", str(path), "--plot", str(curve)]) == 0
        found = json.loads(path.read_text())
        results.append(
            [{key: run[key] for key in run if key not in ("date", "command", "iterations_per_second")} for run in found]
        )
        assert curve.read_text().lstrip().startswith("<?xml")
    assert results[0] == results[1]
    assert [(run["request_rate"], run["max_batch_size"]) for run in results[0]] == [
        (0.5, 1),
        (0.5, 8),
        (2.0, 1),
        (2.0, 8),
    ]
    one, eight = results[0][2:]
    assert eight["request_throughput"] > one["request_throughput"]
    assert "2 x 8 x 1 on a100-40g" in capsys.readouterr().out


def test_a_terminal_shows_how_many_requests_are_simulated(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["--num-requests", "40", "--max-batch-size", "1", "8", "--request-rate", "0.5", "2"]) == 0
    assert "simulating" in terminal.getvalue()
    assert "/160" in terminal.getvalue()


@pytest.mark.parametrize("scheduling", ["orca", "request level"])
def test_every_request_is_counted_once_when_it_is_complete(scheduling):
    trace = with_arrivals(synthetic("homogeneous", 30, 1, (5, 8)), 1.0, 1.0, seed=1)
    made = (
        OrcaScheduling(OrcaSetup(2, 4, 8192))
        if scheduling == "orca"
        else RequestLevel(RequestLevelSetup(2, 4, 2, 8192))
    )
    counted: list[int] = []
    simulate(trace, made, Roofline(HARDWARE["a100-40g"], TABLE_1["13b"][0], 2, 1), 2, lambda: counted.append(1))
    assert len(counted) == 30


def write_log(path: Path) -> None:
    """Return iterations of two stages: 10 ms, 1 ms a token and 10 us a cached token; 2 ms between the stages."""
    lines, clock = [], 0.0
    for sequence in range(1, 60):
        tokens, context = [1 + sequence % 7] * (1 + sequence % 5), [sequence % 11] * (1 + sequence % 5)
        seconds = 0.01 + 0.001 * sum(tokens) + 0.00001 * (sum(tokens) + sum(context))
        stages = [(clock, clock + seconds), (clock + seconds + 0.002, clock + 2 * seconds + 0.002)]
        clock += 3 * seconds
        lines.append(
            {"pipeline": "a", "sequence": sequence, "num_tokens": tokens, "context_length": context, "stages": stages}
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_calibration_finds_what_iterations_cost(tmp_path):
    write_log(tmp_path / "log.jsonl")
    cost = calibrate(tmp_path / "log.jsonl")
    work = [Work(3, 5), Work(1, 20)]
    assert [cost.stage_seconds(stage, work) for stage in (0, 1)] == pytest.approx([0.01 + 0.004 + 0.00029] * 2)
    assert cost.hand_over_seconds(work) == pytest.approx(0.002)


def test_noise_that_only_slows_leaves_the_sum_right(tmp_path):
    """Every fourth iteration takes twice as long: the prediction of all of them together is their sum."""
    write_log(tmp_path / "log.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    for index, line in enumerate(lines):
        line["stages"][1][1] += (line["stages"][1][1] - line["stages"][1][0]) * (index % 4 == 0)
    (tmp_path / "noisy.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    cost = calibrate(tmp_path / "noisy.jsonl")
    predicted = sum(
        cost.stage_seconds(1, [Work(*entry) for entry in zip(line["num_tokens"], line["context_length"], strict=True)])
        for line in lines
    )
    assert predicted == pytest.approx(
        sum(end - begin for _, (begin, end) in (line["stages"] for line in lines)), rel=0.02
    )


def test_a_calibration_finds_the_costs_of_a_simulated_pipeline(tmp_path):
    """Two stages that often wait for each other: what is learned from the log predicts another load."""
    truth = Measured(((0.005, 0, 3e-4, 1e-6, 0), (0.008, 0, 4e-4, 2e-6, 0)), 1e-4, 2e-3, 6e-4)
    works = []

    @dataclass(frozen=True)
    class Watched(Measured):
        def stage_seconds(self, stage, work):
            works.append(work)
            return super().stage_seconds(stage, work)

    def run(seed, rate, cost):
        trace = with_arrivals(synthetic("paper", 60, seed), rate, 1.0, seed)
        return simulate(trace, OrcaScheduling(OrcaSetup(2, 8, 8 * 640)), cost, 2)

    watched = run(0, 1.0, Watched(*astuple(truth)))
    log = [
        {
            "pipeline": "a",
            "sequence": first.sequence,
            "num_tokens": [part.num_tokens for part in work],
            "context_length": [part.context_length for part in work],
            "stages": [(first.begin, first.end), (second.begin, second.end)],
        }
        for first, second, work in zip(watched.spans[::2], watched.spans[1::2], works[::2], strict=True)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    learned = calibrate(tmp_path / "log.jsonl")
    assert learned.turnaround_seconds == pytest.approx(truth.turnaround_seconds)
    assert learned.between_seconds == pytest.approx(truth.between_seconds)
    assert learned.hand_over == pytest.approx(truth.hand_over)
    expected, found = (figures(run(1, 2.0, cost)) for cost in (truth, learned))
    assert found["median_normalized_latency_ms"] == pytest.approx(expected["median_normalized_latency_ms"], rel=0.01)


def test_a_calibrated_system_and_the_baseline(tmp_path, capsys):
    write_log(tmp_path / "log.jsonl")
    system = ["--calibration", str(tmp_path / "log.jsonl"), "--kv-slots", "65536"]
    assert main(["--num-requests", "20", *system]) == 0
    assert main(["--num-requests", "20", *system, "--request-level", "8"]) == 0
    assert f"2 x 1 x 1 calibrated from {tmp_path}/log.jsonl, 65536 slots" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kv-slots", "16"], "does not fit into 16 slots"),
        (["--calibration", "/nowhere.jsonl", "--kv-slots", "64"], "/nowhere.jsonl: No such file"),
        (["--calibration", "pyproject.toml"], "needs --kv-slots"),
        (["--calibration", "pyproject.toml", "--kv-slots", "64"], "not an iteration log"),
        (["--model", "2b"], "invalid choice"),
        (["--trace", "/nowhere.csv"], "No such file"),
        (["--max-batch-size", "0"], "is not a whole number"),
        (
            ["--request-level", "8", "--replicas", "1", "--token-budget", "64", "--no-balanced-batches"],
            "--request-level ignores --replicas, --token-budget, --no-balanced-batches: leave out one or the other",
        ),
        (["--request-level", "8", "--admission", "paged"], "--request-level ignores --admission"),
        (
            ["--calibration", "pyproject.toml", "--kv-slots", "64", "--model", "175b", "-pp", "2", "-tp", "1"],
            "--calibration ignores --model, --pipeline-parallel-size, --tensor-parallel-size: leave out",
        ),
        (["--input-len", "8", "--output-len", "8"], "--trace paper ignores --input-len, --output-len: leave out"),
        (["--plot", "sweep.txt"], "'sweep.txt' does not end with .svg, .png or another format of matplotlib"),
        (["--plot", "sweep"], "argument --plot: 'sweep' does not end with"),
        (["-pp", "9" * 30], "K/V slots per pipeline: at most 268435456 can be simulated"),
        (["--kv-slots", "268435457"], "268435457 K/V slots per pipeline: at most"),
    ],
)
def test_mistakes_end_with_one_line(options, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--num-requests", "5", *options])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("options", [["--request-rate", "1"], ["--burstiness", "1"]])
def test_a_trace_with_arrivals_takes_no_rate(tmp_path, capsys, options):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival,input,output\n0,3,2\n1,5,4\n")
    assert main(["--trace", str(trace)]) == 0
    with pytest.raises(SystemExit) as ended:
        main(["--trace", str(trace), *options])
    assert ended.value.code == 2
    assert f"--trace {trace} (with arrivals) ignores {options[0]}: leave out" in capsys.readouterr().err
