"""CPU time of processes by role, and of a fixed computation."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from orca_bench.cpu_times import CpuTimes, cpu_seconds, fixed_computation

SPIN = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"


def test_time_is_given_to_the_role_once_and_a_process_that_has_ended_is_left_out():
    with subprocess.Popen([sys.executable, "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        times = CpuTimes()
        first = times.since_last({"rank 0.0": process.pid, "rank 1.0": os.getpid()})
        second = times.since_last({"rank 0.0": process.pid})
        process.stdin.close()
    gone = times.since_last({"rank 0.0": process.pid, "master": os.getpid()})
    assert first["ranks"] >= 0.3
    assert second["ranks"] < 0.1
    assert list(gone) == ["master"]


def test_the_time_of_the_fixed_computation_excludes_waiting():
    begin = time.thread_time()
    before = cpu_seconds(os.getpid())
    milliseconds = fixed_computation()
    assert 0 < milliseconds <= 1000 * (time.thread_time() - begin)
    assert cpu_seconds(os.getpid()) >= before
