"""`orca simulate` as a command."""

from __future__ import annotations

import json

import pytest
from orca_bench.simulate import main


def test_a_sweep_can_be_repeated(tmp_path, capsys):
    results = []
    for name in ("a", "b"):
        path, curve = tmp_path / f"{name}.json", tmp_path / f"{name}.svg"
        options = ["--num-requests", "40", "--max-batch-size", "1", "8", "--request-rate", "0.5", "2", "--seed", "5"]
        assert main([*options, "--output", str(path), "--plot", str(curve)]) == 0
        found = json.loads(path.read_text())
        results.append(
            [{key: run[key] for key in run if key not in ("command", "iterations_per_second")} for run in found]
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


def test_measured_costs_and_the_baseline(capsys):
    system = ["--measured", "0.01", "0.001", "0", "--kv-slots", "65536", "-pp", "1"]
    assert main(["--num-requests", "20", *system]) == 0
    assert main(["--num-requests", "20", *system, "--request-level", "8"]) == 0
    assert "65536 slots" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kv-slots", "16"], "does not fit into 16 slots"),
        (["--model", "2b"], "invalid choice"),
        (["--trace", "/nowhere.csv"], "No such file"),
        (["--max-batch-size", "0"], "is not a whole number"),
    ],
)
def test_mistakes_end_with_one_line(options, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--num-requests", "5", *options])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1
