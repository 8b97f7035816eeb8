"""What worker processes take of the machine: their ranks' threads and cores, as the kernel shows them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.engines import WORKER_COMMAND
from support.served import READY, descendants

NAME = "gpt2-head64-tied"
CGROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def ranks_of(model: Path, addresses: Sequence[str], *options: str, prefix: Sequence[str] = ()) -> Iterator[list[int]]:
    """Process ids of all ranks of a pipeline that serves; nothing but the worker says how many threads they have."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    security = [] if addresses[0].startswith("unix:") else ["--insecure"]
    workers = [
        subprocess.Popen([*prefix, *WORKER_COMMAND, "--listen", address, *security], env=environment)
        for address in addresses
    ]
    master_command = [sys.executable, "-m", "orca_master.cli", "master", "--pipeline", ",".join(addresses)]
    master = subprocess.Popen(
        [*master_command, "--model", str(model), "--port", "0", *security, *options], stderr=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(120, lambda: [process.kill() for process in (*workers, master)])
    watchdog.start()
    try:
        assert master.stderr is not None
        assert any(READY.search(line) for line in master.stderr)
        yield [rank for worker in workers for rank in descendants(worker.pid)]
    finally:
        watchdog.cancel()
        master.terminate()
        for process in (master, *workers):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        assert master.stderr is not None
        master.stderr.close()


def threads(pid: int) -> int:
    """Return what OpenMP was told when the process started."""
    entries = dict(entry.partition("=")[::2] for entry in Path(f"/proc/{pid}/environ").read_text().split("\0"))
    return int(entries["OMP_NUM_THREADS"])


@contextlib.contextmanager
def group(quota: float) -> Iterator[Path]:
    """Yield a control group of `quota` CPUs."""
    version2 = (CGROUPS / "cgroup.controllers").is_file()
    folder = (CGROUPS if version2 else CGROUPS / "cpu") / f"orca-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        limit = str(int(quota * 100_000))
        try:
            (folder / ("cpu.max" if version2 else "cpu.cfs_quota_us")).write_text(limit)
        except OSError as error:
            pytest.skip(f"no CPU quota can be set here: {error}")
        yield folder
    finally:
        folder.rmdir()


@pytest.mark.exhaustive
def test_workers_on_tcp_share_threads_and_pin_nothing(checkpoint):
    """Other workers that their master does not know may compute on the same cores: those of other pods on a node."""
    addresses = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            addresses.append(f"127.0.0.1:{listener.getsockname()[1]}")
    cores = os.sched_getaffinity(0)
    with ranks_of(checkpoint(NAME), addresses) as ranks:
        assert len(ranks) == 2
        assert [os.sched_getaffinity(rank) for rank in ranks] == [cores, cores]
        assert sum(map(threads, ranks)) == max(2, len(cores))


@pytest.mark.exhaustive
def test_a_quota_bounds_the_threads_and_pins_nothing(checkpoint, tmp_path):
    """In a real control group of one CPU, on a Unix socket, where ranks are pinned otherwise."""
    cores = os.sched_getaffinity(0)
    with group(1.0) as folder:
        enter = ("sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh")
        with ranks_of(checkpoint(NAME), [f"unix:{tmp_path}/w"], prefix=enter) as ranks:
            (rank,) = ranks
            assert threads(rank) == 1
            assert os.sched_getaffinity(rank) == cores
