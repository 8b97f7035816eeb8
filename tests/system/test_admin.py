"""The ports of a master and a worker beside the API, and a pipeline that is formed again, taken in and taken out."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from orca_contract.message import VERSION
from support.cluster import BODY, NAME, Cluster
from support.served import eventually


@pytest.fixture
def cluster(checkpoint, tmp_path):
    made = Cluster(checkpoint(NAME), tmp_path)
    yield made
    made.stop()


@pytest.mark.exhaustive
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

    pool = ThreadPoolExecutor(4)
    running = [pool.submit(cluster.ask) for _ in range(3)]
    assert eventually(lambda: cluster.state()["running"] == 3)
    cluster.workers[1].send_signal(signal.SIGKILL)
    cluster.workers[1].wait()
    assert eventually(lambda: cluster.state()["state"] == "recovering")
    assert cluster.probe(cluster.master_probe, "/readyz") == 200, "new requests wait, too"
    running.append(pool.submit(cluster.ask))
    assert eventually(lambda: cluster.state()["pipelines"][0]["lastFailure"] is not None)
    assert cluster.state()["pipelines"][0]["phase"] in ("Recovering", "Loading", "Forming")
    cluster.start_worker(1)
    answers = [answer.result(100) for answer in running]
    assert answers == [expected] * 4, "what was accepted goes on, with the same tokens"
    state = cluster.state()
    assert (state["state"], state["pipelines"][0]["phase"]) == ("serving", "Serving")
    assert state["pipelines"][0]["lastFailure"]["recoverySeconds"] > 0
    assert state["pipelines"][0]["epoch"] == 2

    cluster.master.terminate()
    assert cluster.master.wait(20) == 0
    time.sleep(0.5)
    assert [worker.poll() for worker in cluster.workers.values()] == [None, None], "its workers are somebody else's"
    assert cluster.probe(cluster.probes[0], "/readyz") == 200, "and keep their weights"


@pytest.mark.exhaustive
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
    assert (refused.status_code, "only `pipelines` and `closed` can change" in refused.text) == (409, True)


@pytest.mark.exhaustive
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
    unknown = cluster.call("PUT", "/scheduler", json={"maxBatch": 1})
    assert (unknown.status_code, unknown.json()["scheduler"]) == (200, answer["scheduler"]), "ignored, and logged"
    assert answer["contractVersion"] == VERSION
    live = {
        "stallTimeoutSeconds": 45.0, "recoveryTimeoutSeconds": 90.0, "admission": "paged", "policy": "priority",
        "maxExpectedWaitSeconds": 30.0, "drainTimeoutSeconds": 20.0,
    }  # fmt: skip
    changed = cluster.call("PUT", "/scheduler", json=live).json()
    assert changed["scheduler"] == changed["inForce"] == answer["scheduler"] | live
    assert httpx.get(f"http://127.0.0.1:{cluster.master_probe}/progressz").json()["stall_timeout_seconds"] == 45.0
    refused = cluster.call("PUT", "/scheduler", json={"admission": "by force"})
    assert (refused.status_code, refused.json()["detail"].startswith("admission: ")) == (422, True)

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


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_options_are_checked(cluster, tmp_path):
    (tmp_path / "empty").write_text("")
    base = [sys.executable, "-m", "orca_master.cli", "master", "--topology", str(cluster.folder / "topology.json")]
    base.append("--insecure")
    for options, words in (
        (["--admin-port", "0"], "--admin-port needs --admin-token-file"),
        (["--admin-port", "0", "--admin-token-file", str(tmp_path / "none")], "No such file"),
        (["--admin-port", "0", "--admin-token-file", str(tmp_path / "empty")], "it is empty"),
    ):
        done = subprocess.run([*base, *options], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert words in done.stderr
