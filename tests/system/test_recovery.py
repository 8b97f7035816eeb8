"""`orca serve` restarts its workers: streams go on with the same tokens, and a worker that cannot serve ends it."""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from support.served import Served, descendants, eventually, serve, value, worker_pid

NAME = "gpt2-head64-tied"
ENDLESS = {"prompt": [1, 2], "max_tokens": 8000, "stream": True, "ignore_eos": True}
"""Half a minute, where a test interrupts it."""
LONGEST = {**ENDLESS, "max_tokens": 700}
"""As long as the context of `copy` allows."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("partition", [0, 1, 2])
@pytest.mark.parametrize("victim", ["rank", "controller"])
def test_a_stream_goes_on_when_a_worker_dies(endless, partition, victim):
    """The killed rank or controller is restarted, and the stream ends with the tokens of an undisturbed run."""
    body = {**ENDLESS, "max_tokens": 600, "temperature": 0.8, "seed": 3, "return_token_ids": True}
    with serve(endless, "--pipeline-parallel-size", "3") as served:
        undisturbed = _tokens(served, body, lambda: None)
        pid = worker_pid(served, partition, victim)
        survivors = {index: worker_pid(served, index, "rank") for index in range(3) if index != partition}
        disturbed = _tokens(served, body, lambda: os.kill(pid, signal.SIGKILL))
        assert len(undisturbed) == 600
        assert disturbed == undisturbed
        assert any("pipeline local-0 is lost" in line for line in served.log)
        assert any("pipeline local-0 serves: epoch" in line for line in served.log)
        restarts = sum("is restarted" in line for line in served.log)
        assert restarts == (victim == "controller"), "a controller restarts its rank itself"
        assert {index: worker_pid(served, index, "rank") for index in survivors} == survivors
        assert httpx.get(f"{served.url}/readyz").status_code == 200


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_the_other_ranks_of_the_worker_keep_their_weights(endless, number):
    """Two partitions of two ranks, with spares: each rank in turn is killed, or stopped, which the master notices."""
    body = {**ENDLESS, "max_tokens": 200, "temperature": 0.8, "seed": 3, "return_token_ids": True}
    options = ("-pp", "2", "-tp", "2", "--stall-timeout", "5")
    with serve(endless, *options, spare_ranks=True) as served:
        undisturbed = _tokens(served, body, lambda: None)
        for partition in range(2):
            for index in range(2):
                assert eventually(lambda: min(len(_ranks(served, each)) for each in range(2)) == 3), "T and a spare"
                before = [_ranks(served, each) for each in range(2)]
                victim = before[partition][index]
                assert _tokens(served, body, lambda pid=victim: os.kill(pid, number)) == undisturbed
                after = {pid for each in range(2) for pid in _ranks(served, each)}
                kept = {pid for pids in before for pid in pids} - {victim}
                assert kept <= after, "the spare, too: it is the new rank"


@pytest.mark.exhaustive
def test_waiting_streams_have_comments(endless):
    """For longer than a comment's interval a stream waits in the queue, and for a worker that nobody restarts."""

    def lines_of_another_stream() -> list[str]:
        with httpx.stream(
            "POST", f"{served.url}/v1/completions", json={**ENDLESS, "max_tokens": 5}, timeout=60
        ) as answer:
            return [line for line in answer.iter_lines() if line]

    body = {**ENDLESS, "max_tokens": 1500}
    with serve(endless, "--max-batch-size", "1") as served, ThreadPoolExecutor(1) as pool:
        worker = worker_pid(served, 0, "controller")
        with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as answer:
            lines = (line for line in answer.iter_lines() if line)
            assert next(lines).startswith("data: ")
            queued = pool.submit(lines_of_another_stream)
            served.process.send_signal(signal.SIGSTOP)  # it restarts no worker
            try:
                assert eventually(lambda: value(httpx.get(f"{served.url}/metrics").text, "num_requests_waiting") == 1)
                os.kill(worker, signal.SIGKILL)
                assert next(line for line in lines if not line.startswith("data: ")) == ": waiting"
            finally:
                served.process.send_signal(signal.SIGCONT)
            assert list(lines)[-1] == "data: [DONE]"
        waited = queued.result()
        assert waited[0] == ": waiting"
        assert waited[-1] == "data: [DONE]"


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [(), ("--api-processes", "1")], ids=["one process", "API process"])
def test_a_new_request_waits_for_the_recovery(endless, options):
    """The server stays ready; with --max-recovery-wait 0 it refuses the request with Retry-After."""
    body = {"prompt": [1, 2], "max_tokens": 5}
    for wait in ("60", "0"):
        with serve(endless, "--max-recovery-wait", wait, *options) as served:
            worker = worker_pid(served, 0, "controller")
            served.process.send_signal(signal.SIGSTOP)  # it restarts no worker
            try:
                os.kill(worker, signal.SIGKILL)
                if wait == "0":
                    assert eventually(lambda url=served.url: httpx.get(f"{url}/readyz").status_code == 503)
                    refused = httpx.post(f"{served.url}/v1/completions", json=body)
                    assert refused.status_code == 503
                    assert int(refused.headers["retry-after"]) >= 1
                    continue
                assert eventually(lambda log=served.log: any("pipeline local-0 is lost" in line for line in log))
                with ThreadPoolExecutor(1) as pool:
                    answer = pool.submit(httpx.post, f"{served.url}/v1/completions", json=body, timeout=60)
                    assert eventually(lambda url=served.url: _num_waiting(url) == 1)
                    assert httpx.get(f"{served.url}/readyz").status_code == 200
                    served.process.send_signal(signal.SIGCONT)
                    assert answer.result().status_code == 200
                    assert answer.result().json()["usage"]["completion_tokens"] == 5
            finally:
                served.process.send_signal(signal.SIGCONT)


@pytest.mark.exhaustive
def test_an_idle_death_is_noticed_too(checkpoint):
    with serve(checkpoint(NAME), "--pipeline-parallel-size", "3") as served:
        os.kill(worker_pid(served, 1, "rank"), signal.SIGKILL)
        assert eventually(lambda: any("pipeline local-0 serves: epoch" in line for line in served.log))
        assert httpx.get(f"{served.url}/readyz").status_code == 200


@pytest.mark.exhaustive
def test_a_lost_replica_is_formed_again(checkpoint):
    with serve(checkpoint(NAME), "--replicas", "2") as served:
        os.kill(worker_pid(served, 1, "controller"), signal.SIGKILL)
        assert eventually(lambda: any("pipeline local-1 serves: epoch" in line for line in served.log))


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [(), ("--api-processes", "1")], ids=["one process", "API process"])
def test_a_killed_master_is_restarted_and_the_workers_keep_their_weights(checkpoint, options):
    """New connections wait on the port, which the parent process keeps; other deaths may come at the same time."""
    body = {"prompt": [1, 2], "max_tokens": 20, "temperature": 0.8, "seed": 3, "return_token_ids": True}
    with serve(checkpoint("qwen2-gqa-tied"), "-pp", "2", *options) as served:
        ask = functools.partial(httpx.post, f"{served.url}/v1/completions", json=body, timeout=100)
        before = ask().json()["choices"][0]["token_ids"]
        ranks = [_ranks(served, partition) for partition in range(2)]
        first = served.master
        os.kill(first, signal.SIGKILL)
        assert _answered(ask) == before
        assert served.master != first
        assert [_ranks(served, partition) for partition in range(2)] == ranks
        os.kill(served.master, signal.SIGKILL)
        os.kill(worker_pid(served, 0, "controller"), signal.SIGKILL)
        assert _answered(ask) == before
        assert _ranks(served, 1) == ranks[1]
        folders = [line for line in served.log if "Traceback" in line]
        assert not folders, served.log


@pytest.mark.exhaustive
def test_a_master_that_is_killed_again_and_again_ends_the_server(checkpoint):
    with serve(checkpoint("gpt2-head64-tied")) as served:
        for count in range(1, 7):
            assert eventually(lambda: _has_master(served))
            os.kill(served.master, signal.SIGKILL)
            assert eventually(lambda: sum("the master ended" in line for line in served.log) == count)  # noqa: B023
        assert served.process.wait(60) == 1
    assert served.log[-1] == "orca serve: error: the master ended: killed by SIGKILL"


def _has_master(served: Served) -> bool:
    try:
        return served.master > 0
    except ValueError:
        return False


def _answered(ask: Callable[[], httpx.Response]) -> list[int]:
    """Return the tokens of the first answer with status 200: API processes answer 503 while the master starts."""
    answers = []

    def answered() -> bool:
        answers.append(ask())
        return answers[-1].status_code == 200

    assert eventually(answered), answers
    return answers[-1].json()["choices"][0]["token_ids"]


@pytest.mark.exhaustive
def test_workers_that_cannot_be_formed_again_end_the_server(copy):
    """Five attempts, then exit code 1 with the reason in one line; the request that waited gets it, too."""
    with serve(copy, "--pipeline-parallel-size", "2") as served:
        (copy / "config.json").write_text("{}")
        pid = worker_pid(served, 1, "rank")
        with httpx.stream("POST", f"{served.url}/v1/completions", json=LONGEST, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            os.kill(pid, signal.SIGKILL)
            last = [line for line in lines if line][-1]
        assert served.process.wait(60) == 1
        served.stop()
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_unavailable"
    assert "config.json" in last
    assert sum("pipeline local-0 was not formed" in line for line in served.log) == 1, "the same error, within a minute"
    (line,) = [line for line in served.log if line.startswith("orca serve: error: ")]
    assert "pipeline local-0 is lost: " in line
    assert "config.json" in line


def _num_waiting(url: str) -> float:
    return value(httpx.get(f"{url}/metrics").text, "num_requests_waiting")


def _ranks(served: Served, partition: int) -> list[int]:
    """Return the process ids of the ranks of a partition and of its spare, the oldest first."""
    return sorted(descendants(worker_pid(served, partition, "controller")))


def _tokens(served: Served, body: dict, disturb: Callable[[], None]) -> list[int]:
    """Return the token ids of a stream; call `disturb` after the first fifty."""
    tokens: list[int] = []
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=120) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                before = len(tokens)
                tokens += event["choices"][0].get("token_ids", [])
                if before < 50 <= len(tokens):
                    disturb()
    return tokens
