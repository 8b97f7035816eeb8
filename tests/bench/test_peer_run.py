"""A session of the comparison: engines that cannot run are left out, and rounds pair the others."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
from orca_bench.traces import FIRST_TOKEN_ID, LAST_TOKEN_ID
from support.peer_programs import peer_program

SECONDS = {"orca": 1.0, "orca:w8a8": 0.5, "vllm_cpu": 2.0, "vllm_cpu:preload": 3.0, "llama_cpp:q8_0": 1.0}
STARTED = []


class Peer:
    """Stand-in for a peer's process. `openvino_genai` does not load, `llama_cpp` ends in its third run."""

    def __init__(self, name, engine, python, job, cores, preload=()):
        if name == "openvino_genai":
            raise RuntimeError("ImportError: no such package")
        self.name, self.preload, self.runs, self.closed = name, list(preload), 0, False
        STARTED.append(self)

    def run(self):
        self.runs += 1
        if self.name == "llama_cpp" and self.runs == 3:
            raise RuntimeError("ended")
        return SECONDS.get(self.name, 1.0)

    def close(self):
        self.closed = True


@pytest.fixture
def run(monkeypatch):
    STARTED.clear()
    with peer_program("run") as module:

        def environment_of(name, revision=None, folder=None):
            if name == "vllm_zentorch":
                raise module.EnvironmentFailed("ERROR: No matching distribution found for zentorch")
            return Path(folder) / name

        monkeypatch.setattr(module, "Peer", Peer)
        monkeypatch.setattr(module, "environment_of", environment_of)
        monkeypatch.setattr(module, "library", lambda python, name: f"/lib/{name}")
        monkeypatch.setattr(module, "vendor_of", lambda: "AuthenticAMD")
        monkeypatch.setattr(module, "floor_seconds", lambda *arguments: (0.25, 0.5))
        yield module


def arguments(*peers):
    return Namespace(
        peers=peers,
        before=[],
        environments="/envs",
        requests=3,
        seed=0,
        rounds=3,
        model="gpt2",
        device="cpu",
        shared_prefix=0,
    )


def test_an_engine_without_environment_is_named_once_and_left_out(run, tmp_path, capsys):
    given = arguments("vllm_cpu:preload", "vllm_zentorch")
    plan = run.prepare(given)
    assert plan.preloads["vllm_cpu:preload"] == ["/lib/libiomp5.so", "/lib/libtcmalloc_minimal.so.4"]
    cell = run.Cell(1, "bfloat16", "none", 8)
    result = run.measure(given, plan, cell, tmp_path)
    run.show(plan, cell, result)
    printed = capsys.readouterr().out
    assert printed.count("vllm_zentorch is left out: ERROR: No matching distribution found for zentorch") == 1
    assert "failed" not in printed
    assert [column.name for column in result["columns"]] == ["orca", "vllm_cpu:preload"]
    assert {peer.name: peer.preload for peer in STARTED} == {
        "orca": [],
        "vllm_cpu:preload": plan.preloads["vllm_cpu:preload"],
    }


def test_a_peer_that_fails_does_not_end_the_cell(run, tmp_path, capsys):
    given = arguments("vllm_cpu", "openvino_genai", "llama_cpp", "llama_cpp:q8_0")
    plan = run.prepare(given)
    cell = run.Cell(2, "bfloat16", "none", 8)
    result = run.measure(given, plan, cell, tmp_path)
    written = run.show(plan, cell, result)
    assert result["failed"] == {"openvino_genai": "ImportError: no such package", "llama_cpp": "ended"}
    assert [peer.runs for peer in STARTED] == [4, 4, 3], "a warm-up and three rounds"
    assert all(peer.closed for peer in STARTED)
    assert written["vllm_cpu"]["orca_is"] == 2.0
    assert written["vllm_cpu"]["of_floor"] == pytest.approx(0.125)
    assert "bfloat16 batch 8 threads 2: llama_cpp failed: ended" in capsys.readouterr().out


def test_quantised_weights_are_a_cell_of_their_own_with_orcas(run, tmp_path, capsys):
    given = arguments("vllm_cpu", "llama_cpp:q8_0")
    plan = run.prepare(given)
    cell = run.Cell(1, "float32", "int8", 8)
    written = run.show(plan, cell, run.measure(given, plan, cell, tmp_path))
    assert [peer.name for peer in STARTED] == ["orca:w8a8", "llama_cpp:q8_0"]
    assert written["llama_cpp:q8_0"]["reference"] == "orca:w8a8"
    assert "floor" not in written, "its bytes are those of unquantised weights"
    assert "float32, int8 weights batch 8 threads 1: llama_cpp:q8_0" in capsys.readouterr().out


def test_prefixes_are_shared_and_new_in_each_run(run, tmp_path):
    given = arguments("vllm_cpu")
    given.shared_prefix = 40
    plan, cell = run.prepare(given), run.Cell(1, "float32", "none", 8)
    assert "floor" not in run.measure(given, plan, cell, tmp_path), "it counts the work without a cache"
    fields = json.loads((tmp_path / "job.json").read_text())
    with peer_program("protocol") as protocol:
        job = protocol.Job(**fields)
    assert job.prefix_caching
    rounds = [job.prompts_of(number) for number in range(3)]
    assert rounds[0] == job.prompts
    for prompts in rounds:
        assert list(map(len, prompts)) == list(map(len, job.prompts))
        assert len({tuple(prompt[:40]) for prompt in prompts}) == 3
        assert all(FIRST_TOKEN_ID <= token <= LAST_TOKEN_ID for prompt in prompts for token in prompt)
    assert len({tuple(prompt[:40]) for prompts in rounds for prompt in prompts}) == 9


def test_without_a_shared_prefix_each_run_repeats_the_prompts(run, tmp_path):
    given = arguments("vllm_cpu")
    run.measure(given, run.prepare(given), run.Cell(1, "float32", "none", 8), tmp_path)
    with peer_program("protocol") as protocol:
        job = protocol.Job(**json.loads((tmp_path / "job.json").read_text()))
    assert not job.prefix_caching
    assert job.prompts_of(2) == job.prompts
