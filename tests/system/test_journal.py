"""`--journal`: a killed or restarted master finishes what it had accepted, and clients continue their streams."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file
from support.cluster import Cluster
from support.resuming import BASE, KINDS, Transcript, by_choice, request_of, stream
from support.served import Served, descendants, eventually, serve

DEMO = Path(__file__).parents[2] / "examples" / "demo-model"
FLOAT32 = ("--dtype", "float32")


async def play(served: Served, kills: int, number: int = signal.SIGKILL) -> dict[str, Transcript]:
    """Read a stream of each kind, and kill the master `kills` times while they run."""
    transcripts = {name: Transcript() for name in KINDS}
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        reading = [
            asyncio.create_task(stream(client, *request_of(KINDS[name]), transcript))
            for name, transcript in transcripts.items()
        ]
        for kill in range(1, kills + 1):
            while any(len(entry.events) < 20 * kill and not entry.complete for entry in transcripts.values()):
                failed = [task for task in reading if task.done() and task.exception() is not None]
                await asyncio.gather(*failed)
                await asyncio.sleep(0.001)
            before = served.master
            os.kill(before, number)
            while not await asyncio.to_thread(lambda: served.has_other_master(before)):  # noqa: B023
                await asyncio.sleep(0.01)
        await asyncio.gather(*reading)
    return transcripts


@pytest.mark.long
def test_streams_continue_when_the_master_is_killed(tmp_path):
    """Twice, with every kind of request: each event comes once, in order, and is that of the undisturbed run."""
    folder = tmp_path / "journal"
    with serve(DEMO, *FLOAT32, "-pp", "2", "--journal", str(folder)) as served:
        undisturbed = asyncio.run(play(served, kills=0))
        resumed = asyncio.run(play(served, kills=2))
        for name, entry in resumed.items():
            assert by_choice(entry) == by_choice(undisturbed[name]), name
        lost = {name for name, entry in resumed.items() if entry.num_losses}
        assert lost >= KINDS.keys() - {"stop string"}, "that one is short"
        # The second kill may come before the second master resumes them.
        assert 1 <= sum("requests of an earlier master are resumed" in line for line in served.log) <= 2
        assert not any("Traceback" in line for line in served.log), served.log
        assert all((folder / name).stat().st_mode & 0o077 == 0 for name in os.listdir(folder))
        metrics = httpx.get(f"{served.url}/metrics").text
        assert re.search(r"^orca:journal_on\{.*\} 1.0$", metrics, re.MULTILINE)


@pytest.mark.exhaustive
def test_streams_continue_when_the_master_is_stopped(tmp_path):
    """It gives no sign of life, so its parent process kills and restarts it."""
    with serve(DEMO, *FLOAT32, "--journal", str(tmp_path)) as served:
        undisturbed = asyncio.run(play(served, kills=0))
        resumed = asyncio.run(play(served, kills=1, number=signal.SIGSTOP))
        for name, entry in resumed.items():
            assert by_choice(entry) == by_choice(undisturbed[name]), name
        assert any(entry.num_losses for entry in resumed.values())
        assert sum("the master gives no sign of life and is killed" in line for line in served.log) == 1


@pytest.mark.exhaustive
def test_a_request_whose_client_does_not_come_back_is_finished_and_can_be_read(tmp_path):
    body = {**BASE, "temperature": 0.9, "seed": 5, "max_tokens": 300}
    options = ("--journal", str(tmp_path), "--api-key", "one", "--api-key", "two")
    one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
    with serve(DEMO, *FLOAT32, *options) as served:
        client = httpx.Client(base_url=served.url, timeout=60, headers=one)
        whole = client.post("/v1/completions", json={**body, "stream": False}).json()
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            first = [json.loads(next(lines)[6:]) for _ in range(20)][-1]
            path = f"/v1/requests/{first['id']}"
            running = client.get(path).json()
            assert (running["status"], running["error"]) == ("in_progress", None)
            before = served.master
            os.kill(before, signal.SIGKILL)
        assert eventually(lambda: served.has_other_master(before))  # a new connection to the killed one may be reset
        assert client.get(path, headers=two).status_code == 404, "of another key"
        assert client.get("/v1/requests/cmpl-0").status_code == 404
        assert client.get(path, headers={"Accept": "text/event-stream", "Last-Event-ID": "x"}).status_code == 400
        assert eventually(lambda: client.get(path).json()["status"] == "completed")
        known = client.get(path).json()["response"]
        assert known["choices"] == whole["choices"]
        assert (known["usage"], known["id"]) == (whole["usage"], first["id"])
        kept = client.get(f"/v1/requests/{whole['id']}").json()
        assert kept["response"] == whole, "also what had ended before the kill"


@pytest.mark.exhaustive
def test_a_stopped_server_continues_at_its_next_start_and_forgets_what_is_old(tmp_path):
    options = ("--journal", str(tmp_path), "--resume-window", "1", "--drain-timeout", "1")
    body = {**BASE, "max_tokens": 690, "temperature": 0.9, "seed": 5}
    transcript = Transcript()
    with serve(DEMO, *FLOAT32, *options) as served:
        asyncio.run(_read_until_stopped(served, body, transcript))
    assert not transcript.complete
    with serve(DEMO, *FLOAT32, *options) as served:
        asyncio.run(_read(served.url, body, transcript))
        path = f"{served.url}/v1/requests/{transcript.request_id}"
        assert eventually(lambda: httpx.get(path).status_code == 404), "forgotten after a second"
        whole = httpx.post(f"{served.url}/v1/completions", json={**body, "stream": False}, timeout=60).json()
    assert _tokens(transcript) == whole["choices"][0]["token_ids"]


@pytest.mark.exhaustive
def test_a_master_started_again_by_its_supervisor_continues_with_the_same_ranks(checkpoint, tmp_path):
    """`orca master` as in a pod: the workers live on."""
    cluster = Cluster(checkpoint("qwen2-gqa-tied"), tmp_path)
    transcript = Transcript()

    async def play_on() -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{cluster.api}", timeout=60) as client:
            body = {**BASE, "temperature": 0.8, "seed": 1, "max_tokens": 600}
            reading = asyncio.create_task(stream(client, "/v1/completions", body, transcript))
            while len(transcript.events) < 50:
                await asyncio.sleep(0.001)
            assert cluster.master is not None
            cluster.master.kill()
            await asyncio.to_thread(cluster.master.wait, 60)
            cluster.start_master("--journal", str(tmp_path / "journal"))
            await reading

    try:
        for index in range(2):
            cluster.start_worker(index)
        cluster.start_master("--journal", str(tmp_path / "journal"))
        assert eventually(lambda: cluster.probe(cluster.master_probe, "/readyz") == 200)
        assert cluster.state()["journal"] == "on"
        undisturbed = cluster.ask(**{**BASE, "stream": False, "temperature": 0.8, "seed": 1, "max_tokens": 600})
        ranks = [descendants(worker.pid) for worker in cluster.workers.values()]
        asyncio.run(play_on())
        assert transcript.num_losses >= 1
        assert _tokens(transcript) == undisturbed
        assert all(
            descendants(worker.pid) >= before for worker, before in zip(cluster.workers.values(), ranks, strict=True)
        )
    finally:
        cluster.stop()


async def _read(url: str, body: dict[str, object], transcript: Transcript) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await stream(client, "/v1/completions", body, transcript)


async def _read_until_stopped(served: Served, body: dict[str, object], transcript: Transcript) -> None:
    """Read 20 events of a stream, and stop the server before it ends."""
    reading = asyncio.create_task(_read(served.url, body, transcript))
    while len(transcript.events) < 20:
        await asyncio.sleep(0.001)
    os.kill(served.master, signal.SIGSTOP)  # so that the request cannot end within the drain timeout
    served.process.send_signal(signal.SIGTERM)
    os.kill(served.master, signal.SIGKILL)
    await asyncio.to_thread(served.process.wait, 60)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


def _tokens(transcript: Transcript) -> list[int]:
    """Return the tokens of a stream of one choice; the first event has the prompt."""
    return [token for event in transcript.events[1:-1] for token in json.loads(event)["choices"][0]["token_ids"]]


@pytest.mark.exhaustive
def test_one_master_at_a_time_has_the_folder(tmp_path):
    with serve(DEMO, "--journal", str(tmp_path)):
        second = Served([str(DEMO), "--journal", str(tmp_path), "--drain-timeout", "1"])  # and the grace after it
        assert second.process.wait(100) == 2
    assert f"orca serve: error: --journal {tmp_path}: another master uses this folder" in second.log


@pytest.mark.exhaustive
def test_an_answer_is_not_continued_with_the_weights_of_a_later_start(tmp_path):
    """Its beginning is one checkpoint's; the server that starts again serves another one under the same path."""
    model = shutil.copytree(DEMO, tmp_path / "model")
    options = ("--journal", str(tmp_path / "journal"), "--drain-timeout", "1")
    transcript = Transcript()
    with serve(model, *FLOAT32, *options) as served:
        asyncio.run(_read_until_stopped(served, {**BASE, "max_tokens": 690}, transcript))
    weights = {name: tensor * 1.25 for name, tensor in load_file(model / "model.safetensors").items()}
    save_file(weights, model / "model.safetensors")
    with serve(model, *FLOAT32, *options) as served:
        path = f"{served.url}/v1/requests/{transcript.request_id}"
        assert eventually(lambda: httpx.get(path).json()["status"] != "in_progress")
        found = httpx.get(path).json()
    assert found["status"] == "failed"
    assert "the weights of the model were replaced (model.safetensors " in found["error"]
