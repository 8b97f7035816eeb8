"""The ports of a master and a worker beside the API, and a pipeline that is formed again, taken in and taken out."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support.engines import WORKER_COMMAND
from support.served import eventually

NAME = "qwen2-gqa-tied"
TOKEN = "a secret"
BODY = {"prompt": [3, 4, 5], "max_tokens": 300, "temperature": 0.8, "seed": 1, "ignore_eos": True,
        "return_token_ids": True}  # fmt: skip


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [made.getsockname()[1] for made in sockets]
    for made in sockets:
        made.close()
    return found


class Cluster:
    """Two workers and a master as in pods: started apart, with probes and an admin port."""

    def __init__(self, checkpoint: Path, folder: Path) -> None:
        self.checkpoint = checkpoint
        self.folder = folder
        self.ports = free_ports(4)
        self.probes = free_ports(4)
        self.api, self.master_probe, self.admin = free_ports(3)
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        (folder / "token").write_text(TOKEN)
        self.topology = self.make_topology(1)
        (folder / "topology.json").write_text(json.dumps(self.topology))
        self.master: subprocess.Popen[str] | None = None
        self.log: list[str] = []

    def make_topology(self, pipelines: int) -> dict:
        addresses = [f"127.0.0.1:{port}" for port in self.ports]
        return {
            "model": {"path": str(self.checkpoint), "servedName": NAME, "dtype": "float32", "maxModelLen": None},
            "pipelineParallelSize": 2,
            "tensorParallelSize": 1,
            "communication": {"backend": "gloo", "socketInterface": "lo", "env": {}},
            "pipelines": [
                {"id": f"abc-{index}", "workers": addresses[2 * index : 2 * index + 2], "state": "active"}
                for index in range(pipelines)
            ],
        }

    def start_worker(self, index: int) -> None:
        self.workers[index] = subprocess.Popen(
            [
                *WORKER_COMMAND,
                "--listen",
                f"127.0.0.1:{self.ports[index]}",
                "--probe-port",
                str(self.probes[index]),
                "--drain-timeout",
                "60",
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def start_master(self, *options: str) -> None:
        self.master = subprocess.Popen(
            [sys.executable, "-m", "orca_master.cli", "master", "--topology", str(self.folder / "topology.json"),
             "--port", str(self.api), "--probe-port", str(self.master_probe), "--admin-port", str(self.admin),
             "--admin-token-file", str(self.folder / "token"), "--recovery-timeout", "60", *options],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.master is not None
        assert self.master.stderr is not None
        self.log += self.master.stderr

    def call(self, method: str, path: str, token: str = TOKEN, **arguments) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.request(method, f"http://127.0.0.1:{self.admin}{path}", headers=headers, timeout=30, **arguments)

    def state(self) -> dict:
        return self.call("GET", "/state").json()

    def serving(self) -> list[str]:
        return [pipeline["id"] for pipeline in self.state()["pipelines"] if pipeline["phase"] == "Serving"]

    def probe(self, port: int, path: str) -> int:
        try:
            return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=10).status_code
        except httpx.ConnectError:
            return 0

    def ask(self, **changes) -> list[int]:
        answer = httpx.post(f"http://127.0.0.1:{self.api}/v1/completions", json={**BODY, **changes}, timeout=100)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["token_ids"]

    def stop(self) -> None:
        for process in [*self.workers.values(), self.master]:
            if process is not None:
                process.kill()
                process.wait()


@pytest.fixture
def cluster(checkpoint, tmp_path):
    made = Cluster(checkpoint(NAME), tmp_path)
    yield made
    made.stop()


def test_a_master_waits_for_its_workers_and_forms_a_lost_pipeline_again(cluster):
    cluster.start_master()
    assert eventually(lambda: cluster.probe(cluster.master_probe, "/livez") == 200)
    assert cluster.probe(cluster.master_probe, "/startupz") == 200
    assert cluster.probe(cluster.master_probe, "/readyz") == 503
    cluster.start_worker(0)
    assert eventually(lambda: cluster.probe(cluster.probes[0], "/livez") == 200)
    assert cluster.probe(cluster.probes[0], "/readyz") == 503, "nothing is loaded"
    assert cluster.state()["state"] == "loading"
    assert cluster.state()["pipelines"][0]["phase"] == "Connecting"
    cluster.start_worker(1)
    assert eventually(lambda: cluster.probe(cluster.master_probe, "/readyz") == 200)
    assert cluster.probe(cluster.probes[0], "/readyz") == 200
    assert "orca:worker_loaded 1.0" in httpx.get(f"http://127.0.0.1:{cluster.probes[0]}/metrics").text
    assert "orca:num_requests_running" in httpx.get(f"http://127.0.0.1:{cluster.master_probe}/metrics").text
    assert cluster.probe(cluster.probes[0], "/other") == 404
    expected = cluster.ask()

    pool = ThreadPoolExecutor(3)
    running = [pool.submit(cluster.ask) for _ in range(3)]
    assert eventually(lambda: cluster.state()["running"] == 3)
    cluster.workers[1].send_signal(signal.SIGKILL)
    cluster.workers[1].wait()
    assert eventually(lambda: cluster.state()["state"] == "recovering")
    assert cluster.probe(cluster.master_probe, "/readyz") == 503
    assert eventually(lambda: cluster.state()["pipelines"][0]["lastFailure"] is not None)
    assert cluster.state()["pipelines"][0]["phase"] in ("Recovering", "Loading", "Forming")
    cluster.start_worker(1)
    answers = [answer.result(100) for answer in running]
    assert answers == [expected] * 3, "what was accepted goes on, with the same tokens"
    state = cluster.state()
    assert (state["state"], state["pipelines"][0]["phase"]) == ("serving", "Serving")
    assert state["pipelines"][0]["lastFailure"]["recoverySeconds"] > 0
    assert state["pipelines"][0]["epoch"] == 2

    cluster.master.terminate()
    assert cluster.master.wait(20) == 0
    time.sleep(0.5)
    assert [worker.poll() for worker in cluster.workers.values()] == [None, None], "its workers are somebody else's"
    assert cluster.probe(cluster.probes[0], "/readyz") == 200, "and keep their weights"


def test_pipelines_come_and_go(cluster):
    for index in range(4):
        cluster.start_worker(index)
    cluster.start_master()
    assert eventually(lambda: cluster.probe(cluster.master_probe, "/readyz") == 200)
    expected = [cluster.ask(seed=seed) for seed in range(6)]
    assert cluster.call("PUT", "/topology", json=cluster.make_topology(2)).status_code == 200
    assert eventually(lambda: cluster.serving() == ["abc-0", "abc-1"])
    assert cluster.state()["topology"] == cluster.make_topology(2)

    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(cluster.ask, seed=seed) for seed in range(6)]
        assert eventually(lambda: cluster.state()["running"] >= 4)
        assert cluster.call("PUT", "/topology", json=cluster.make_topology(1)).status_code == 200
        assert [answer.result(100) for answer in running] == expected, "requests of the pipeline that left went on"
    assert cluster.serving() == ["abc-0"]
    metrics = httpx.get(f"http://127.0.0.1:{cluster.probes[2]}/metrics", timeout=10).text
    assert "orca:worker_streams 0.0" in metrics, "its workers are let go"

    other = {**cluster.make_topology(1), "tensorParallelSize": 2}
    refused = cluster.call("PUT", "/topology", json=other)
    assert (refused.status_code, "only `pipelines` can change" in refused.text) == (409, True)


@pytest.mark.parametrize("api_processes", ["0", "2"])
def test_knobs_tokens_and_the_drain(cluster, api_processes):
    for index in range(2):
        cluster.start_worker(index)
    cluster.start_master("--api-processes", api_processes)
    assert eventually(lambda: cluster.probe(cluster.master_probe, "/readyz") == 200)
    assert cluster.call("GET", "/state", token="").status_code == 401
    assert cluster.call("GET", "/state", token="wrong").status_code == 401
    answer = cluster.call("PUT", "/scheduler", json={"maxBatchSize": 1, "tokenBudget": 64}).json()
    assert answer["scheduler"] == {"maxBatchSize": 1, "tokenBudget": 64, "maxQueueDepth": 4096}
    assert cluster.call("PUT", "/scheduler", json={"maxBatchSize": 0}).status_code == 422
    assert cluster.call("PUT", "/scheduler", json={"maxBatch": 1}).status_code == 422

    answers: list[list[int]] = []
    thread = threading.Thread(target=lambda: answers.append(cluster.ask()))
    thread.start()
    assert eventually(lambda: cluster.state()["running"] == 1)
    drain = [sys.executable, "-m", "orca_master.cli", "drain", "--admin-port", str(cluster.admin),
             "--admin-token-file", str(cluster.folder / "token"), "--timeout", "60"]  # fmt: skip
    assert subprocess.run(drain, timeout=90, check=False).returncode == 0
    thread.join(60)
    assert len(answers[0]) == BODY["max_tokens"], "what ran has ended before the drain returned"
    assert cluster.state()["draining"] is True
    refused = httpx.post(f"http://127.0.0.1:{cluster.api}/v1/completions", json=BODY)
    assert refused.status_code == 503
    assert cluster.probe(cluster.master_probe, "/readyz") == 503
    cluster.master.terminate()
    assert cluster.master.wait(20) == 0
    done = subprocess.run(drain, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)


def test_a_worker_outlasts_its_masters_drain_and_takes_no_new_master(cluster):
    """All get their signal together; a new master of the same addresses waits for new workers."""
    for index in range(2):
        cluster.start_worker(index)
    cluster.start_master()
    assert eventually(lambda: cluster.probe(cluster.master_probe, "/readyz") == 200)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(cluster.ask)
        assert eventually(lambda: cluster.state()["running"] == 1)
        cluster.workers[0].terminate()
        cluster.workers[1].terminate()
        cluster.master.terminate()
        assert len(running.result(60)) == BODY["max_tokens"], "what ran has ended first"
    assert [process.wait(20) for process in (cluster.master, *cluster.workers.values())] == [0, 0, 0]
    cluster.start_worker(0)
    cluster.start_worker(1)
    cluster.start_master()
    assert eventually(lambda: cluster.probe(cluster.master_probe, "/readyz") == 200)
    cluster.workers[0].terminate()
    cluster.master.kill()
    assert cluster.workers[0].wait(20) == 0, "its master is gone"


def test_options_are_checked(cluster, tmp_path):
    (tmp_path / "empty").write_text("")
    base = [sys.executable, "-m", "orca_master.cli", "master", "--topology", str(cluster.folder / "topology.json")]
    for options, words in (
        (["--admin-port", "0"], "--admin-port needs --admin-token-file"),
        (["--admin-port", "0", "--admin-token-file", str(tmp_path / "none")], "No such file"),
        (["--admin-port", "0", "--admin-token-file", str(tmp_path / "empty")], "it is empty"),
    ):
        done = subprocess.run([*base, *options], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert words in done.stderr
