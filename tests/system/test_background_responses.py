"""Background responses of a real server, with and without API processes, through the official client."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support.checkpoints import with_long_context
from support.every_byte import every_byte_model
from support.served import Served, descendants, eventually, serve, value

pytestmark = pytest.mark.long

NAME = "every-byte"
OPTIONS = ("--served-model-name", NAME, "--dtype", "float32", "--api-key", "one", "--api-key", "two")


LONG = 8000
"""Tokens of responses that do not end before a test interrupts them."""


@pytest.fixture(scope="module")
def model(run_folder, tmp_path_factory) -> Path:
    return with_long_context(every_byte_model(run_folder), tmp_path_factory.mktemp("longer"))


# The routes of one process are tried by tests/master/test_background.py, too.
@pytest.fixture(
    scope="module",
    params=[pytest.param("0", id="one-process"), pytest.param("2", id="two-processes")],
)
def served(request, model) -> Iterator[Served]:
    with serve(model, *OPTIONS, "--api-processes", request.param) as server:
        yield server


def client_of(served: Served, key: str = "one") -> openai.OpenAI:
    """Return a client each request of which has a connection of its own, which the kernel gives to any process."""
    http = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0, timeout=60, http_client=http)


@pytest.fixture(scope="module")
def client(served):
    return client_of(served)


def ask(client: openai.OpenAI, max_output_tokens: int = 40, **options: Any) -> Any:
    options = {"model": NAME, "input": "Hi", "temperature": 0, "background": True, **options}
    return client.responses.create(max_output_tokens=max_output_tokens, extra_body={"ignore_eos": True}, **options)


def ended(client: openai.OpenAI, response_id: str) -> Any:
    """Poll a response until it has ended."""
    seen = ["queued"]

    def has_ended() -> bool:
        seen.append(client.responses.retrieve(response_id).status)
        return seen[-1] not in ("queued", "in_progress")

    assert eventually(has_ended)
    order = ["queued", "in_progress", seen[-1]]
    assert seen == sorted(seen, key=order.index), "the states come in their order"
    return client.responses.retrieve(response_id)


def running(served: Served) -> float:
    return value(httpx.get(f"{served.url}/metrics").text, "num_requests_running")


def api_processes(served: Served) -> set[int]:
    """Return the process ids of the API processes."""
    pids = set()
    for pid in descendants(served.process.pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if "orca_master.api_processes.api_process" in Path(f"/proc/{pid}/cmdline").read_text():
                pids.add(pid)
    return pids


def test_a_response_is_polled(client):
    begun = ask(client, metadata={"a": "b"})
    assert (begun.status, begun.background, begun.metadata) == ("queued", True, {"a": "b"})
    response = ended(client, begun.id)
    whole = ask(client, background=False)
    assert (response.status, response.output_text) == (whole.status, whole.output_text)
    assert response.usage.output_tokens == 40
    continued = ended(client, ask(client, input="Go on.", previous_response_id=begun.id).id)
    assert continued.usage.input_tokens > whole.usage.input_tokens + 40


@pytest.mark.parametrize("step", [7, *(pytest.param(step, marks=pytest.mark.exhaustive) for step in (1, 30))])
def test_a_stream_that_is_interrupted_again_and_again_is_the_undisturbed_one(client, step):
    with ask(client, stream=True) as stream:
        read = list(itertools.islice(stream, step))
    response_id = read[0].response.id
    resumptions = 0
    while read[-1].type != "response.incomplete":
        resumptions += 1
        with client.responses.retrieve(response_id, stream=True, starting_after=read[-1].sequence_number) as stream:
            read += itertools.islice(stream, step)
    whole = list(client.responses.retrieve(response_id, stream=True))
    assert read == whole
    assert [event.sequence_number for event in whole] == list(range(len(whole)))
    assert resumptions == -(-len(whole) // step) - 1
    assert [event.type for event in whole[:3]] == ["response.created", "response.queued", "response.in_progress"]
    foreground = ask(client, background=False)
    assert "".join(event.delta for event in whole if event.type == "response.output_text.delta") == (
        foreground.output_text
    )
    assert client.responses.retrieve(response_id).to_dict() == whole[-1].response.to_dict()
    assert list(client.responses.retrieve(response_id, stream=True, starting_after=len(whole) - 1)) == []


def test_several_clients_read_a_stream_while_it_runs(served, client):
    with ask(client, 300, stream=True) as stream:
        response_id = next(iter(stream)).response.id
    read: dict[int, list[Any]] = {}

    def follow(after: int) -> None:
        read[after] = list(client_of(served).responses.retrieve(response_id, stream=True, starting_after=after))

    readers = [threading.Thread(target=follow, args=(after,)) for after in (0, 0, 5, 200, 1000)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    whole = list(client.responses.retrieve(response_id, stream=True))
    assert read == {after: whole[after + 1 :] for after in (0, 5, 200, 1000)}


def test_a_cancelled_response_is_freed_and_its_readers_end(served, client):
    begun = ask(client, LONG, stream=True)
    first = next(iter(begun))
    cancelled = client.responses.cancel(first.response.id)
    assert cancelled.status == "cancelled"
    rest = list(begun)
    assert [event.sequence_number for event in [first, *rest]] == list(range(len(rest) + 1))
    assert (rest[-1].type, rest[-1].response.status) == ("response.incomplete", "cancelled")
    assert list(client.responses.retrieve(first.response.id, stream=True, starting_after=0)) == rest
    assert client.responses.cancel(first.response.id).to_dict() == cancelled.to_dict()
    assert eventually(lambda: running(served) == 0)
    with pytest.raises(openai.BadRequestError, match="background: true"):
        client.responses.cancel(ask(client, 2, background=False).id)


def test_a_deleted_response_is_freed_and_its_readers_end(served, client):
    begun = ask(client, LONG, stream=True)
    first = next(iter(begun))
    client.responses.delete(first.response.id)
    assert list(begun)[-1:] != [first]
    assert eventually(lambda: running(served) == 0)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.response.id, stream=True, starting_after=0)


def test_a_response_belongs_to_its_key(served, client):
    begun = ask(client, LONG)
    other = client_of(served, "two").responses
    for _ in range(4):
        for call in (other.retrieve, other.cancel, other.delete):
            with pytest.raises(openai.NotFoundError):
                call(begun.id)
    with pytest.raises(openai.BadRequestError, match="in progress"):
        ask(client, previous_response_id=begun.id)
    assert client.responses.cancel(begun.id).status == "cancelled"


@pytest.mark.parametrize("processes", [pytest.param("0", marks=pytest.mark.exhaustive), "2"])
@pytest.mark.parametrize(
    ("seconds", "count", "length"), [("60", 1, 600), ("1", 3, LONG)], ids=["time-enough", "too-little-time"]
)
def test_the_end_of_the_server_ends_responses(model, processes, seconds, count, length):
    options = (*OPTIONS, "--api-processes", processes, "--drain-timeout", seconds)
    with serve(model, *options) as server:
        client = client_of(server)
        streams = [ask(client, length, stream=True) for _ in range(count)]
        first = [next(iter(stream)) for stream in streams]
        following = [
            client.responses.retrieve(event.response.id, stream=True, starting_after=event.sequence_number)
            for event in first
        ]
        assert server.stop(signal.SIGTERM) == 0, server.log
        rest = [list(stream) for stream in streams]
        assert [list(stream) for stream in following] == rest
        last = [events[-1] for events in rest]
        assert {event.type for event in last} == {"response.failed" if length == LONG else "response.incomplete"}
        assert all(event.response.error.message.endswith("the server ends") for event in last if length == LONG)


def test_a_response_is_polled_while_the_server_drains(model):
    """Processes without requests end at once; connections that the kernel would give to them go to the others."""
    with serve(model, *OPTIONS, "--api-processes", "4", "--drain-timeout", "60") as server:
        client = client_of(server)
        begun = ask(client, LONG)
        server.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: len(api_processes(server)) == 1)
        patient = client.with_options(max_retries=5)  # the master may just be closing the last socket
        assert {patient.responses.retrieve(begun.id).status for _ in range(16)} == {"in_progress"}
        assert patient.responses.cancel(begun.id).status == "cancelled"
        assert server.process.wait(60) == 0


def test_a_response_whose_process_is_lost_fails(model):
    with serve(model, *OPTIONS, "--api-processes", "2") as server:
        client = client_of(server)
        begun = [ask(client, LONG, stream=stream) for stream in (False, False, True, True)]
        ids = [begun[0].id, begun[1].id, *(next(iter(stream)).response.id for stream in begun[2:])]
        for pid in api_processes(server):
            os.kill(pid, signal.SIGKILL)

        def all_failed() -> bool:
            return {client.responses.retrieve(response_id).status for response_id in ids} == {"failed"}

        assert eventually(all_failed)
        for response_id in ids:
            error = client.responses.retrieve(response_id).error
            assert "has ended: send the request again" in error.message
            assert client.responses.cancel(response_id).status == "failed"
        for response_id in ids[2:]:
            events = list(client.responses.retrieve(response_id, stream=True))
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert events[-1].type == "response.failed"
        assert eventually(lambda: running(server) == 0)


@pytest.mark.exhaustive
def test_many_clients_that_do_everything_at_once(served, client):
    """Each stream is whole for every reader, whatever the others do; in the end nothing runs."""

    def follow(response_id: str, step: int) -> list[Any]:
        """Read a stream in pieces of `step` events, each in a connection of its own."""
        read: list[Any] = []
        while True:
            after = read[-1].sequence_number if read else openai.omit
            try:
                piece = []
                with client_of(served).responses.retrieve(response_id, stream=True, starting_after=after) as stream:
                    piece += itertools.islice(stream, step)
            except openai.NotFoundError:
                return read
            if not piece:
                return read
            read += piece

    def live(seed: int) -> None:
        chance = random.Random(seed)
        own = client_of(served)
        stream = ask(own, chance.randint(1, 120), stream=True, temperature=1)
        response_id = next(iter(stream)).response.id
        if chance.random() < 0.5:
            stream.close()
        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(follow, response_id, chance.choice([3, 20, 1000])) for _ in range(3)]
            if chance.random() < 0.3:
                own.responses.cancel(response_id)
            is_deleted = chance.random() < 0.2
            if is_deleted:
                own.responses.delete(response_id)
            every = [reader.result() for reader in readers]
        longest = max(every, key=len)
        assert [event.sequence_number for event in longest] == list(range(len(longest)))
        assert all(events == longest[: len(events)] for events in every)
        if not is_deleted:
            assert every == [longest] * 3
            assert longest[-1].type == "response.incomplete"

    with ThreadPoolExecutor(16) as pool:
        for finished in [pool.submit(live, seed) for seed in range(40)]:
            finished.result()
    assert eventually(lambda: running(served) == 0)
    assert ended(client, ask(client, 5).id).status == "incomplete"
