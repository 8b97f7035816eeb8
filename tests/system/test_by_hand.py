"""Workers and master started by hand on TCP addresses, and an engine whose worker falls silent."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading

import httpx
import pytest
from orca_master.engine.config import EngineConfig
from orca_master.scheduling.request import FinishReason
from support.certificates import sign, write
from support.cluster import free_ports
from support.engines import WORKER_COMMAND, engine, engine_over, topology, worker_processes
from support.instrumented_worker import command
from support.served import READY

NAME = "gpt2-head80-untied"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("source", "has_certificates"), [("--pipeline", True), ("--topology", False)])
def test_orca_master_over_workers_that_were_started_elsewhere(
    checkpoint, references, tmp_path, source, has_certificates
):
    """`orca worker --listen host:port` twice, `orca master` once; the same tokens as transformers."""
    security = ["--insecure"]
    if has_certificates:
        authority = sign()
        certificate = sign("master.local.orca", "worker.local.orca", issuer=authority)
        security = ["--tls-dir", str(write(tmp_path / "tls", certificate, authority))]
    (reference,) = references(NAME, (33,), 32)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    if source == "--pipeline":
        options = ["--pipeline", ",".join(addresses), "--model", str(checkpoint(NAME))]
    else:
        path = tmp_path / "topology.json"
        pipelines = [{"id": "a1b2c3-0", "workers": addresses, "state": "active"}]
        model = {"path": str(checkpoint(NAME)), "servedName": NAME}
        communication = {"backend": "gloo", "socketInterface": "lo"}
        path.write_text(
            json.dumps(
                {"model": model, "pipelineParallelSize": 2, "communication": communication, "pipelines": pipelines}
            )
        )
        options = ["--topology", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    master_command = [sys.executable, "-m", "orca_master.cli", "master", *options, *security, "--port", "0"]
    processes = [
        subprocess.Popen([*WORKER_COMMAND, "--listen", address, *security], env=environment) for address in addresses
    ]
    processes.append(subprocess.Popen(master_command, stderr=subprocess.PIPE, text=True, env=environment))
    watchdog = threading.Timer(100, lambda: [process.kill() for process in processes])
    watchdog.start()
    try:
        url = next(found[1] for line in processes[-1].stderr if (found := READY.search(line)))
        body = {
            "model": NAME, "prompt": list(reference.prompt), "max_tokens": 32, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
        assert answer["choices"][0]["token_ids"] == reference.greedy
        processes[-1].terminate()
        assert [process.wait(30) for process in processes] == [0, 0, 0], "the master ends its workers"
    finally:
        watchdog.cancel()
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.exhaustive
def test_without_a_supervisor_of_its_workers_a_master_ends_with_its_last_pipeline(checkpoint):
    with worker_processes(1) as (addresses, processes):
        options = ["--pipeline", addresses[0], "--model", str(checkpoint(NAME)), "--port", "0"]
        command = [sys.executable, "-m", "orca_master.cli", "master", *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as master:
            watchdog = threading.Timer(100, master.kill)
            watchdog.start()
            try:
                assert any(READY.search(line) for line in master.stderr)
                processes[0].kill()
                last = master.stderr.read().splitlines()[-1]
                assert master.wait() == 1
            finally:
                watchdog.cancel()
                master.kill()
        assert last.startswith(f"orca master: error: pipeline local-0 is lost: worker {addresses[0]}: ")


@pytest.mark.exhaustive
def test_a_silent_worker_is_given_up_within_the_bound(checkpoint, tmp_path):
    """A kernel that never returns: the iteration's own deadline ends the pipeline and its requests."""
    workers = {0: command("watched_rank.py", str(tmp_path))}

    async def run() -> None:
        config = EngineConfig(stall_timeout=2.0)
        async with engine(checkpoint(NAME), 1, config, workers) as harness:
            (tmp_path / "armed").touch()
            harness.submit("stuck", (1, 2, 3), 5)
            harness.submit("waiting", (1, 2), 5)
            async with asyncio.timeout(60):
                ended = [await harness.outputs.get() for _ in range(2)]
            assert {output.request_id for output in ended} == {"stuck", "waiting"}
            for output in ended:
                assert output.finish_reason is FinishReason.ERROR
                assert "an iteration did not return within 2 s" in output.error
            harness.assert_nothing_held()

    asyncio.run(run())


@pytest.mark.exhaustive
def test_requests_that_came_before_the_limits_were_known_are_checked(checkpoint, worker_pool):
    """Queued while the model loads: one that can never fit ends with the numbers, the others are served."""

    async def run() -> None:
        config = EngineConfig(kv_slots=64)
        spec = topology(checkpoint(NAME), worker_pool.addresses(1))
        async with engine_over(spec, config, start=False) as harness:
            harness.submit("too long", (1,) * 60, 10)
            harness.submit("fits", (1,) * 10, 10)
            await harness.engine.start()
            refused = await harness.outputs.get()
            assert (refused.request_id, refused.finish_reason) == ("too long", FinishReason.ERROR)
            assert "need 80 K/V slots (rounded to blocks of 16), this server has 64" in refused.error
            assert len((await harness.collect(1))["fits"]) == 10

    asyncio.run(run())
