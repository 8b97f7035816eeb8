"""No process of a served model reads a pickle, also not through torch: whoever can send one would run code in it."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest
from support import pickle_trap
from support.served import serve

pytestmark = pytest.mark.long

NAME = "gpt2-head64-tied"
READS = {
    "loads": "import pickle; pickle.loads(b'N.')",
    "load": "import io, pickle; pickle.load(io.BytesIO(b'N.'))",
    "from": "from pickle import loads; loads(b'N.')",
    "Unpickler": "import io, pickle; pickle.Unpickler(io.BytesIO(b'N.')).load()",
    "a class of its own": "import io, pickle\nclass Mine(pickle.Unpickler): pass\nMine(io.BytesIO(b'N.')).load()",
    "in Python": "import io, pickle; pickle._Unpickler(io.BytesIO(b'N.')).load()",
    "multiprocessing": "import multiprocessing as m\na, b = m.Pipe()\na.send(None)\nb.recv()",
    "torch.load": "import io, torch; torch.load(io.BytesIO(b''))",
    "torch.distributed": "import torch.distributed as d; d.broadcast_object_list([None])",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, value in pickle_trap.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path


@pytest.mark.parametrize("program", READS.values(), ids=READS)
def test_the_trap_springs(folder, program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "PickleTrappedError" in done.stderr
    assert len(pickle_trap.trapped(folder)) == 1
    assert len(pickle_trap.processes(folder)) == 1


@pytest.mark.parametrize(("partitions", "ranks"), [pytest.param(1, 2, marks=pytest.mark.exhaustive), (2, 2)])
def test_no_rank_reads_a_pickle(checkpoint, folder, partitions, ranks):
    """From the start over a completion to the end, several ranks per partition among them."""
    options = ("--pipeline-parallel-size", str(partitions), "--tensor-parallel-size", str(ranks))
    with serve(checkpoint(NAME), *options) as served:
        body = {"prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": True}
        answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 5
    assert pickle_trap.trapped(folder) == []
    commands = [" ".join(command) for command in pickle_trap.processes(folder)]
    expected = {
        "orca_worker.rank": partitions * ranks,
        " orca_worker --listen": partitions,
        "orca_master.cli serve": 1,
    }
    assert {name: sum(name in command for command in commands) for name in expected} == expected
