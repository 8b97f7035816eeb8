"""Processes of a server by name, and the resources that they hold."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from orca_bench import processes as tree
from orca_bench.processes import processes, spares, with_variable, workers
from orca_bench.resources import (
    Usage,
    files,
    gauges,
    grown,
    held,
    parse_memory,
    parse_threads,
    role_of,
    temporary_files,
    usage,
)

ROLLUP = """\
55d0c8a00000-7ffd5a5c1000 ---p 00000000 00:00 0                          [rollup]
Rss:              109492 kB
Pss:               58331 kB
Pss_Dirty:         50120 kB
Shared_Clean:      56320 kB
Shared_Dirty:          0 kB
Private_Clean:      2052 kB
Private_Dirty:     51120 kB
"""
SERVER = {  # process id: (command, children)
    1: ("orca serve model", [2, 3, 4, 9]),
    2: ("orca serve model", [20]),
    3: ("orca_worker --listen unix:/tmp/x/worker-0.sock", [30, 31, 32]),
    4: ("orca_worker --listen unix:/tmp/x/worker-1.sock", [41]),
    9: ("", []),
    20: ("python template_process", []),
    31: ("python -m orca_worker.rank --fd 5", []),
    32: ("python -m orca_worker.rank --fd 6", []),
    30: ("python -m orca_worker.rank --fd 7", []),
    41: ("python -m orca_worker.rank --fd 5", []),
}


@pytest.fixture
def server(monkeypatch):
    """Replace proc(5) by a server with a worker of two ranks, and one that has just lost its second rank."""
    monkeypatch.setattr(tree, "command", lambda pid: SERVER[pid][0])
    monkeypatch.setattr(tree, "children", lambda pid: SERVER[pid][1])
    monkeypatch.setattr(tree, "start", list(SERVER).index)  # listed by age


@pytest.mark.usefixtures("server")
def test_processes_are_named_by_partition_and_the_youngest_rank_is_the_spare():
    assert processes(1, ranks_per_worker=2) == {
        "parent": 1, "master": 2, "controller 0": 3, "rank 0.0": 31, "rank 0.1": 32, "spare 0": 30,
        "controller 1": 4, "rank 1.0": 41, "other 20": 20, "other 9": 9,
    }  # fmt: skip


@pytest.mark.usefixtures("server")
def test_the_only_rank_of_a_worker_is_no_spare():
    assert processes(1)["rank 1.0"] == 41
    assert "spare 1" not in processes(1)


@pytest.mark.usefixtures("server")
def test_controllers_and_ranks_are_killed_in_turn_and_neither_master_nor_spares():
    names = ["controller 0", "rank 0.0", "rank 0.1", "controller 1", "rank 1.0"]
    assert workers(processes(1, ranks_per_worker=2)) == names


def test_every_controller_has_a_spare():
    assert spares(["controller 0", "rank 0.0", "controller 1", "master"]) == {"spare 0", "spare 1"}


@pytest.mark.parametrize(
    ("name", "role"),
    [("parent", "parent"), ("controller 1", "controllers"), ("rank 0.1", "ranks"), ("other 20", "others")],
)
def test_roles(name, role):
    assert role_of(name) == role


def test_memory_of_a_process_is_read_in_bytes():
    assert parse_memory(ROLLUP) == (109492 * 1024, 53172 * 1024)


def test_a_process_that_is_ending_has_no_memory():
    with pytest.raises(ValueError, match="no memory map"):
        parse_memory("")


def test_threads():
    assert parse_threads("Name:\torca\nThreads:\t11\nSigQ:\t0/1\n") == 11
    with pytest.raises(ValueError, match="threads"):
        parse_threads("Name:\torca\n")


def test_usage_of_a_running_and_of_an_ended_process():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"ready")
        assert process.stdout.read(5) == b"ready"  # no file of its start is open any more
        used = usage(process.pid)
        process.kill()
        assert isinstance(used, Usage)
        assert (used.threads, used.descriptors) == (1, 3)
        assert 0 < used.private < used.resident
    assert usage(process.pid) is None


def test_the_processes_of_a_role_are_added_up():
    values = held({"rank 0.0": os.getpid(), "rank 1.0": os.getpid(), "controller 0": 2**22 + 1})
    assert values["processes"] == 2
    assert values["threads, ranks"] == 2 * values["threads, client"]
    assert "threads, controllers" not in values


def test_gauges_are_read_from_the_metrics():
    text = (
        "# TYPE orca:num_requests_running gauge\n"
        'orca:num_requests_running{model_name="a} b"} 3.0\n'
        'orca:num_requests_waiting{model_name="a} b"} 0.0\n'
        'orca:kv_cache_usage_perc{model_name="a} b"} 0.25\n'
        'orca:exactness_level{model_name="a} b"} 1.0\n'
    )
    values = {"running requests": 3.0, "waiting requests": 0.0, "held K/V slots (fraction)": 0.25}
    assert gauges(text) == values


def test_an_idle_server_must_hold_no_more_descriptors_than_before_and_no_requests():
    before = {"running requests": 0.0, "descriptors, master": 30.0, "descriptors, client": 5.0, "threads, master": 9.0}
    after = {"running requests": 1.0, "descriptors, master": 31.0, "descriptors, client": 8.0, "threads, master": 12.0}
    assert grown(before, before) == []
    assert grown(before, after) == [("running requests", 0.0), ("descriptors, master", 30.0)]
    assert grown({}, after) == [("running requests", 0.0)]


def test_a_helper_process_that_stays_after_the_load_is_noticed():
    before = {"processes": 6.0, "descriptors, master": 30.0}
    after = {"processes": 7.0, "descriptors, master": 30.0, "descriptors, others": 9.0}
    assert grown(before, after) == [("processes", 6.0)]
    assert grown(before, {**before, "processes": 5.0}) == []


def test_the_journal_is_no_temporary_file(tmp_path):
    journal = tmp_path / "journal"
    journal.mkdir()
    (journal / "00000001.journal").write_bytes(bytes(1 << 20))
    (tmp_path / "orca-x").mkdir()
    (tmp_path / "orca-x" / "worker-0.sock").touch()
    assert temporary_files(tmp_path, journal) == [tmp_path / "orca-x" / "worker-0.sock"]
    values = files(tmp_path, journal)
    assert (values["temporary files"], values["journal (MiB)"]) == (1, 1)


def test_processes_are_found_by_a_variable_that_they_inherited(tmp_path):
    child = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(child, env={**os.environ, "TMPDIR": str(tmp_path)}) as process:
        try:
            found = with_variable("TMPDIR", str(tmp_path))
        finally:
            process.kill()
        assert found == [process.pid]
