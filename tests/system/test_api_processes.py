"""`--api-processes`: what several processes around one scheduler add; test_endpoint.py runs in this arrangement too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from orca_contract.state import EngineState
from orca_master import heartbeat
from orca_master.api_processes import pool as api_process_pool
from orca_master.api_processes.link_server import EngineServer
from orca_master.api_processes.pool import api_processes as run_api_processes
from orca_master.endpoint.config import EndpointConfig
from orca_master.engine.engine_client import EngineClient, EngineStatus
from orca_master.engine.progress import Progress
from orca_master.engine.recovery import Recovery
from orca_protos.listening import listen
from support import pickle_trap
from support.checkpoints import with_long_context, with_tokenizer
from support.served import Served, alive, descendants, eventually, serve, value

NAME = "llama-gqa-tied"
LONG = {"model": NAME, "prompt": "x", "max_tokens": 2000, "ignore_eos": True, "temperature": 0}
ENDLESS = {**LONG, "max_tokens": 8000, "stream": True}
"""Half a minute, where a test interrupts it."""
OPTIONS = ("--max-batch-size", "8", "--api-processes", "3", "--max-recovery-wait", "0")


@pytest.fixture(scope="module")
def model(checkpoint, tmp_path_factory) -> Path:
    longer = with_long_context(checkpoint(NAME), tmp_path_factory.mktemp("longer"))
    return with_tokenizer(longer, tmp_path_factory.mktemp("processes"), eos=0)


@pytest.fixture(scope="module")
def served(model) -> Iterator[Served]:
    """Yield a server for all tests that leave it serving."""
    with serve(model, *OPTIONS) as server:
        yield server


@pytest.fixture
def fresh(model) -> Iterator[Served]:
    """Yield a server that has had no request and that the test may end."""
    with serve(model, *OPTIONS) as server:
        yield server


def processes_of(served: Served, module: str) -> set[int]:
    """Return the processes that run `module`; what they have forked has their command line until execve."""
    pids = descendants(served.process.pid)
    found = {pid for pid in pids if alive(pid) and module in Path(f"/proc/{pid}/cmdline").read_text()}
    return found.difference(*map(descendants, found))


def api_processes(served: Served) -> set[int]:
    return processes_of(served, "orca_master.api_processes.api_process")


def connected(pids: set[int]) -> set[int]:
    """Those of the processes that have an established connection of TCP."""
    rows = map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
    established = {f"socket:[{row[9]}]" for row in rows if row[3] == "01"}
    return {pid for pid in pids if any(link(file) in established for file in Path(f"/proc/{pid}/fd").iterdir())}


def link(file: Path) -> str:
    """Where a link leads; a file may be closed meanwhile."""
    try:
        return os.readlink(file)
    except FileNotFoundError:
        return ""


def ends(served: Served) -> Counter[str]:
    """Return how many requests have ended for each reason, as the metrics say."""
    text = httpx.get(f"{served.url}/metrics").text
    counts = re.findall(r'^orca:request_success_total\{finished_reason="(\w+)".*\} (\S+)$', text, re.MULTILINE)
    return +Counter({reason: int(float(count)) for reason, count in counts})


@pytest.mark.long
def test_all_processes_serve_and_any_of_them_knows_the_metrics(fresh, references):
    """Forty connections, twenty at once: each of three processes has its share, the tokens are the model's."""
    assert len(api_processes(fresh)) == 3
    (reference,) = references(NAME, (33,), 32)
    body = {"model": NAME, "prompt": list(reference.prompt), "max_tokens": 32, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True}  # fmt: skip
    used: set[int] = set()
    with ThreadPoolExecutor(20) as pool:

        def ask(_: int) -> list[int]:
            with httpx.Client(timeout=60) as client:
                answer = client.post(f"{fresh.url}/v1/completions", json=body)
                used.update(connected(api_processes(fresh)))
                return answer.json()["choices"][0]["token_ids"]

        for tokens in pool.map(ask, range(40)):
            assert tokens == list(reference.greedy)
    assert used == api_processes(fresh)
    assert ends(fresh) == Counter(length=40)
    metrics = {httpx.get(f"{fresh.url}/metrics").text.split("# HELP orca:iteration")[0] for _ in range(8)}
    assert value(metrics.pop(), "generation_tokens_total") == 40 * 32
    assert not metrics, "every process says the same"


@pytest.mark.long
def test_ends_are_counted_as_what_they_were(served):
    """A stop string is found in the API process, a client that leaves is seen there: the metrics are the master's."""
    before = ends(served)
    first = httpx.post(f"{served.url}/v1/completions", json={**LONG, "max_tokens": 40}, timeout=60).json()
    stop = first["choices"][0]["text"][5:9]
    answer = httpx.post(f"{served.url}/v1/completions", json={**LONG, "stop": [stop]}, timeout=60).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    with httpx.stream("POST", f"{served.url}/v1/completions", json=ENDLESS) as stream:
        next(stream.iter_lines())
    assert eventually(lambda: ends(served) - before == Counter(length=1, stop=1, abort=1))
    assert httpx.post(f"{served.url}/v1/completions", json={**LONG, "max_tokens": 10**6}).status_code == 400
    assert ends(served) - before == Counter(length=1, stop=1, abort=1), "a refusal is none"


@pytest.mark.long
def test_one_that_dies_is_replaced_and_its_requests_are_let_go(served):
    before, ends_before = api_processes(served), ends(served)
    with httpx.stream("POST", f"{served.url}/v1/completions", json=ENDLESS, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        (victim,) = connected(before)
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
    with ThreadPoolExecutor(12) as pool:
        # Connections that come meanwhile wait for the new process.
        asked = [
            pool.submit(httpx.post, f"{served.url}/v1/completions", json={**LONG, "max_tokens": 4}, timeout=60)
            for _ in range(12)
        ]
        assert [answer.result().status_code for answer in asked] == [200] * 12
    assert eventually(lambda: len(api_processes(served)) == 3)
    assert len(before & api_processes(served)) == 2
    assert value(httpx.get(f"{served.url}/metrics").text, "num_requests_running") == 0
    assert ends(served) - ends_before == Counter(length=12, abort=1)
    assert any("an API process ended (killed by SIGKILL) and is restarted" in line for line in served.log)


@pytest.mark.long
def test_no_process_reads_a_pickle(model, tmp_path, monkeypatch):
    """Neither the master nor an API process, for completions, log probabilities, refusals, metrics and ends."""
    for name, setting in pickle_trap.environment(tmp_path).items():
        monkeypatch.setenv(name, setting)
    with serve(model, "--api-processes", "2") as served:
        body = {**LONG, "max_tokens": 4}
        answers = [httpx.post(f"{served.url}/v1/completions", json=body, timeout=60) for _ in range(6)]
        answers.append(httpx.post(f"{served.url}/v1/completions", json={**body, "logprobs": 3}, timeout=60))
        assert [answer.status_code for answer in answers] == [200] * 7
        assert len(answers[-1].json()["choices"][0]["logprobs"]["top_logprobs"]) == 4
        assert httpx.post(f"{served.url}/v1/completions", json={**LONG, "max_tokens": 10**6}).status_code == 400
        with httpx.stream("POST", f"{served.url}/v1/completions", json=ENDLESS, timeout=60) as stream:
            next(stream.iter_lines())
        assert eventually(lambda: ends(served) == Counter(length=7, abort=1))
    assert pickle_trap.trapped(tmp_path) == []
    commands = [" ".join(command) for command in pickle_trap.processes(tmp_path)]
    expected = {"orca_master.api_processes.api_process": 2, "orca_master.cli serve": 1, "orca_worker.rank": 1}
    assert {name: sum(name in command for command in commands) for name in expected} == expected


@pytest.mark.long
def test_what_breaks_the_protocol_ends_alone(served):
    """The link of an unknown process is closed; requests through the API processes go on."""
    (pid, *_) = api_processes(served)
    arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    path = arguments[arguments.index("--engine") + 1]
    with httpx.stream(
        "POST", f"{served.url}/v1/completions", json={**LONG, "max_tokens": 500, "stream": True}, timeout=60
    ) as stream:
        lines = stream.iter_lines()
        next(lines)
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(path)
            link.sendall(b"\x03\0\0\0abc")
            link.settimeout(30)
            with contextlib.suppress(ConnectionError):
                while link.recv(4096):
                    pass
        assert [line for line in lines if line][-1] == "data: [DONE]"
    said = f"the link to API process {os.getpid()} is closed: an undecodable message of 3 bytes"
    assert eventually(lambda: any(said in line for line in served.log))
    assert not any("Traceback" in line for line in served.log)


@pytest.mark.long
def test_limits_reach_the_processes(model):
    with serve(model, "--api-processes", "1", "--max-body-bytes", "10000") as served:
        refused = httpx.post(f"{served.url}/v1/completions", content=b" " * 10_001)
        assert refused.status_code == 413
        assert "the body exceeds 10000 bytes" in refused.json()["error"]["message"]


@pytest.mark.long
def test_keys_from_the_standard_input_follow_the_name_of_its_file(model, tmp_path):
    """A file that takes the name of the one that was opened is read by all processes."""
    path = tmp_path / "keys"
    path.write_text("old\n")
    options = ("--api-processes", "2", "--api-key-file", "/dev/stdin")
    with serve(model, *options, cwd=tmp_path, prefix=("sh", "-c", 'exec "$@" < keys', "sh")) as server:

        def statuses(key: str) -> set[int]:
            """Of requests in connections of their own, with which the kernel reaches all processes."""
            headers = {"Authorization": f"Bearer {key}"}
            return {httpx.get(f"{server.url}/v1/models", headers=headers).status_code for _ in range(16)}

        assert (statuses("old"), statuses("new")) == ({200}, {401})
        (tmp_path / "keys.new").write_text("new\n")
        (tmp_path / "keys.new").rename(path)
        assert eventually(lambda: (statuses("old"), statuses("new")) == ({401}, {200})), server.log


@pytest.mark.long
@pytest.mark.parametrize("min_tokens", [2**32, 10**30])
def test_values_that_no_message_can_carry_are_refused(served, min_tokens):
    """The request alone: the next one is served."""
    body = {**LONG, "max_tokens": 4}
    refused = httpx.post(f"{served.url}/v1/completions", json={**body, "min_tokens": min_tokens}, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "min_tokens")
    seeded = {**body, "seed": -(2**63), "logit_bias": {"5": -100}}
    assert httpx.post(f"{served.url}/v1/completions", json=seeded, timeout=60).status_code == 200


class NoEngine(EngineClient):
    """An engine that is loading for ever."""

    status = EngineStatus(EngineState.LOADING, "", False, 0, 0, 0, Progress(), 0, 0, Recovery())

    async def submit(self, submission, receive) -> None:
        raise NotImplementedError

    def release(self, request_id, ended_as) -> None:
        raise NotImplementedError

    def note_response(self, route, status) -> None:
        raise NotImplementedError

    async def metrics(self) -> bytes:
        raise NotImplementedError


class Counting(NoEngine):
    """Lets responses be counted."""

    def note_response(self, route, status) -> None:
        pass


def pool(engine: EngineClient, model: Path, listener: socket.socket) -> contextlib.AbstractAsyncContextManager[object]:
    """Run one API process."""
    return run_api_processes(engine, EngineServer(engine, model, EndpointConfig(("m",))), (listener,))


def test_a_process_that_breaks_the_protocol_is_killed_and_replaced(tmp_path, monkeypatch, caplog):
    rogue = Path(__file__).parents[1] / "support" / "rogue_api_process.py"
    started = []
    start = api_process_pool.start_process

    async def start_rogue(program: str, *arguments: str, **options) -> asyncio.subprocess.Process:
        started.append(await start(program, rogue, *arguments[2:], **options))
        return started[-1]

    monkeypatch.setattr(api_process_pool, "start_process", start_rogue)

    async def main() -> None:
        async with asyncio.timeout(120):
            with listen("127.0.0.1", 0) as listener:
                async with pool(NoEngine(), tmp_path, listener):
                    while len(started) < 2:
                        await asyncio.sleep(0.05)

    asyncio.run(main())
    assert started[0].returncode == -signal.SIGKILL
    assert f"the link to API process {started[0].pid} is closed: a message of 4294967295 bytes" in caplog.text
    assert "an API process ended (killed by SIGKILL) and is restarted" in caplog.text


@pytest.mark.long
def test_a_process_that_hangs_is_killed_and_replaced(tmp_path, monkeypatch, caplog):
    """The kernel goes on to give it connections, which nothing would answer."""
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 5.0)
    started = []
    start = api_process_pool.start_process

    async def start_noted(*arguments: str, **options) -> asyncio.subprocess.Process:
        process = await start(*arguments, **options)
        if "orca_master.api_processes.api_process" in arguments:
            started.append(process)
        return process

    monkeypatch.setattr(api_process_pool, "start_process", start_noted)

    async def main() -> None:
        with listen("127.0.0.1", 0) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/livez"
            server = EngineServer(Counting(), tmp_path, EndpointConfig(("m",)))
            async with run_api_processes(Counting(), server, (listener,)), asyncio.timeout(240):
                assert not server.is_joined
                async with httpx.AsyncClient(timeout=None) as client:
                    assert (await client.get(url)).status_code == 200
                    assert server.is_joined
                    started[0].send_signal(signal.SIGSTOP)
                    while len(started) == 1:
                        await asyncio.sleep(0.05)
                async with httpx.AsyncClient(timeout=None) as client:
                    assert (await client.get(url)).status_code == 200

    asyncio.run(main())
    assert started[0].returncode == -signal.SIGKILL
    assert caplog.text.count(f"API process {started[0].pid} gives no sign of life and is killed") == 1


@pytest.mark.long
def test_a_stream_outlasts_sigterm(fresh):
    processes = descendants(fresh.process.pid)
    body = {**LONG, "max_tokens": 500, "stream": True}  # within the drain timeout also on a busy machine
    with httpx.stream("POST", f"{fresh.url}/v1/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        fresh.process.send_signal(signal.SIGTERM)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert fresh.process.wait(30) == 0
    assert eventually(lambda: not any(map(alive, processes)))


@pytest.mark.long
def test_what_outlasts_the_drain_ends_with_an_error(model):
    options = ("--api-processes", "2", "--drain-timeout", "1", "--max-batch-size", "1", "--max-expected-wait", "3600")
    with serve(model, *options) as served, ThreadPoolExecutor(40) as pool:
        asked = [pool.submit(httpx.post, f"{served.url}/v1/completions", json=ENDLESS, timeout=60) for _ in range(40)]
        assert eventually(lambda: value(httpx.get(f"{served.url}/metrics").text, "num_requests_waiting") > 30)
        code = served.stop(signal.SIGTERM)
        answers = [answer.result() for answer in asked]
    assert code == 0
    errors = [answer for answer in answers if "the server stops" in answer.text]
    assert len(errors) >= 30, [answer.text[-200:] for answer in answers]
    assert {answer.status_code for answer in errors} <= {200, 503}


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_stays_behind(fresh, number):
    # The master, three of the API, each with one for chat templates, a worker and its rank; one may still be starting.
    assert eventually(lambda: len(descendants(fresh.process.pid)) == 9), descendants(fresh.process.pid)
    processes = descendants(fresh.process.pid)
    assert fresh.stop(number) == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    assert eventually(lambda: not any(map(alive, processes)))
    assert not any("Traceback" in line for line in fresh.log), fresh.log


@pytest.mark.long
def test_a_lost_engine_is_known_everywhere(served):
    """The stopped parent process does not restart the worker until it continues."""
    (worker,) = processes_of(served, "orca_worker\0--listen")
    served.process.send_signal(signal.SIGSTOP)
    os.kill(worker, signal.SIGKILL)

    def answers() -> list[httpx.Response]:
        return [httpx.get(f"{served.url}/readyz") for _ in range(12)]

    assert eventually(lambda: all(answer.status_code == 503 and "is lost" in answer.text for answer in answers()))
    served.process.send_signal(signal.SIGCONT)
    assert eventually(lambda: all(answer.status_code == 200 for answer in answers()))
    answer = httpx.post(f"{served.url}/v1/completions", json={**LONG, "max_tokens": 5}, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 5
