"""Large bodies are checked in a process that can be ended: the same values and errors, within bounds."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from orca_master.bodies import body_checker
from orca_master.bodies.body_checker import SMALL_BYTES, BodyChecker
from orca_master.bodies.body_process import LENGTHS
from orca_master.bodies.bounded_turns import ANYONE, Caller
from orca_master.bodies.lengths import MAX_CHARACTERS, Lengths
from orca_master.bodies.validation import check_body
from orca_master.errors import CONTEXT_EXCEEDED, EngineUnavailableError, QueueFullError, RequestError

CONTEXT = 60_000
LONG = "a\ud800é😀 " * (SMALL_BYTES // 5)


def encoded(body: Any) -> bytearray:
    data = bytearray(json.dumps(body).encode())
    return data + b" " * (SMALL_BYTES + 1 - len(data))


def run(play: Callable[[BodyChecker], Awaitable[None]]) -> None:
    async def checked() -> None:
        checker = BodyChecker()
        async with asyncio.timeout(120):
            await play(checker)
        checker._kill()

    asyncio.run(checked())


def plain(value: Any) -> Any:
    """Without the difference between a list and an array of token ids."""
    if isinstance(value, list | array):
        return [plain(entry) for entry in value]
    return value


BODIES = [
    ("completion", {"prompt": list(range(CONTEXT)), "temperature": 0.1, "seed": -(2**63), "logit_bias": {"5": -1.5}}),
    ("completion", {"prompt": [[7, 8], [2**31 - 1], list(range(30_000))], "n": 2, "stop": ["\ud800", "b"]}),
    ("completion", {"prompt": LONG, "stream": True, "stream_options": {"include_usage": True}}),
    ("completion", {"prompt": [LONG, "b"], "max_tokens": 10**9, "echo": True}),
    ("chat", {"messages": [{"role": "user", "content": LONG, "name": "n"}, {"role": "assistant"}], "top_logprobs": None,
              "chat_template_kwargs": {"a": [1, {"b": None}]}}),
    ("chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": text} for text in ("a", "b")]}]}),
    ("tokenize", {"prompt": LONG, "add_special_tokens": False}),
    ("tokenize", {"messages": [{"role": "user", "content": LONG}], "add_generation_prompt": False}),
    ("detokenize", {"tokens": list(range(CONTEXT))}),
    ("detokenize", {"tokens": []}),
]  # fmt: skip


def test_values_are_the_same_as_on_the_event_loop():
    async def play(checker: BodyChecker) -> None:
        for kind, content in BODIES:
            body = encoded(content)
            here = check_body(kind, bytes(body), Lengths(CONTEXT))
            there = await checker.check(kind, body, Lengths(CONTEXT))
            assert checker._process is not None, "the body is a large one"
            assert not body, "its memory is free"
            assert type(here) is type(there)
            for name in type(here).model_fields:
                if name == "messages":
                    assert [(one.role, one.text, one.name) for one in here.messages] == [
                        (one.role, one.text, one.name) for one in there.messages
                    ]
                else:
                    assert plain(getattr(here, name)) == plain(getattr(there, name)), name

    run(play)


def test_errors_are_the_same_as_on_the_event_loop():
    async def play(checker: BodyChecker) -> None:
        for kind, body, code in (
            ("completion", encoded({"prompt": [1] * (CONTEXT + 1)}), CONTEXT_EXCEEDED),
            ("completion", encoded({"prompt": [1] * 1000 + [-1]}), None),
            ("completion", encoded({"prompt": ["a" * (MAX_CHARACTERS // 10)] * 11}), None),
            ("completion", encoded({"\ud800": 1}), None),
            ("chat", encoded({"messages": [{"role": "robot", "content": LONG}]}), None),
            ("chat", encoded({"messages": [{"role": "user", "content": "a" * (17 * CONTEXT)}]}), CONTEXT_EXCEEDED),
            ("tokenize", encoded(["\ud800"]), None),
            ("detokenize", bytearray(b"[" * (1 << 20)), None),
        ):
            with pytest.raises(RequestError) as here:
                check_body(kind, bytes(body), Lengths(CONTEXT))
            with pytest.raises(RequestError) as there:
                await checker.check(kind, body, Lengths(CONTEXT))
            assert (str(here.value), here.value.field) == (str(there.value), there.value.field)
            assert here.value.code == there.value.code == code

    run(play)


def test_small_bodies_need_no_process():
    async def play(checker: BodyChecker) -> None:
        value = await checker.check("completion", bytearray(b'{"prompt": "a"}'), Lengths(CONTEXT))
        assert (value.prompt, checker._process) == ("a", None)

    run(play)


def test_a_body_that_takes_too_long_or_ends_the_process_is_refused_and_the_next_one_is_read(monkeypatch):
    sound = {"prompt": [1, 2]}

    async def play(checker: BodyChecker) -> None:
        monkeypatch.setattr(body_checker, "CHECK_SECONDS", 0.0)
        with pytest.raises(RequestError, match="cannot be read within 0 s"):
            await checker.check("completion", encoded(sound), Lengths(CONTEXT))
        monkeypatch.undo()
        assert list((await checker.check("completion", encoded(sound), Lengths(CONTEXT))).prompt) == [1, 2]
        exchange = body_checker._exchange
        # Native code aborts without memory; the kernel kills for lack of it, whatever process has taken it.
        for number, error, words in (
            (signal.SIGABRT, RequestError, "MiB of memory"),
            (signal.SIGKILL, EngineUnavailableError, "was killed: retry"),
        ):

            def exchange_with_ended(
                process: subprocess.Popen[bytes], *others: Any, number: int = number
            ) -> tuple[dict[str, Any], bytes]:
                process.send_signal(number)
                return exchange(process, *others)

            monkeypatch.setattr(body_checker, "_exchange", exchange_with_ended)
            with pytest.raises(error, match=words):
                await checker.check("completion", encoded(sound), Lengths(CONTEXT))
            monkeypatch.undo()
            assert list((await checker.check("completion", encoded(sound), Lengths(CONTEXT))).prompt) == [1, 2]

    run(play)


def test_a_process_that_was_killed_while_it_was_idle_is_replaced():
    async def play(checker: BodyChecker) -> None:
        for _ in range(2):
            assert list((await checker.check("completion", encoded({"prompt": [1]}), Lengths(CONTEXT))).prompt) == [1]
            assert checker._process is not None
            checker._process.kill()
            await asyncio.to_thread(checker._process.wait)

    run(play)


def test_a_process_that_cannot_be_started_is_no_fault_of_the_request(monkeypatch):
    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def play(checker: BodyChecker) -> None:
        monkeypatch.setattr(body_checker, "_start", fail)
        with pytest.raises(EngineUnavailableError, match="does not start: Too many open files"):
            await checker.check("completion", encoded({"prompt": [1]}), Lengths(CONTEXT))
        monkeypatch.undo()
        assert list((await checker.check("completion", encoded({"prompt": [1]}), Lengths(CONTEXT))).prompt) == [1]

    run(play)


def test_a_client_that_leaves_ends_the_process():
    async def play(checker: BodyChecker) -> None:
        asked = asyncio.create_task(checker.check("completion", encoded({"prompt": [1]}), Lengths(CONTEXT)))
        while checker._process is None:
            await asyncio.sleep(0.01)
        process = checker._process
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await asyncio.to_thread(process.wait)
        assert (checker._process, checker._turns.num_waiting) == (None, 0)

    run(play)


def test_clients_that_leave_during_the_start_leave_one_process(monkeypatch):
    """Ten of them; the next body gets the process that was started for the first."""
    started: list[subprocess.Popen[bytes]] = []
    begin, start = threading.Event(), body_checker._start

    def start_late() -> subprocess.Popen[bytes]:
        assert begin.wait(60)
        started.append(start())
        return started[-1]

    monkeypatch.setattr(body_checker, "_start", start_late)

    async def play(checker: BodyChecker) -> None:
        for _ in range(10):
            asked = asyncio.create_task(checker.check("completion", encoded({"prompt": [1]}), Lengths(CONTEXT)))
            while checker._starting is None:
                await asyncio.sleep(0)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        begin.set()
        assert list((await checker.check("completion", encoded({"prompt": [1]}), Lengths(CONTEXT))).prompt) == [1]
        assert started == [checker._process]

    run(play)


def test_a_burst_of_large_bodies_is_checked_and_the_queue_bounds_those_that_wait():
    async def play(checker: BodyChecker) -> None:
        def check(caller: Caller) -> Awaitable[Any]:
            return checker.check("completion", encoded({"prompt": [1]}), Lengths(CONTEXT), caller)

        await checker._turns.acquire(ANYONE, 0)
        some = [asyncio.create_task(check(Caller("a", 40))) for _ in range(40)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="40 large bodies are waiting, the limit is 40"):
            await check(Caller("b", 40))
        checker._turns.release(ANYONE)
        assert len(await asyncio.gather(*some)) == 40

    run(play)


@pytest.mark.long
def test_memory_is_bounded():
    """16 MiB of empty arrays as values take 350 MiB."""
    program = (
        "from orca_master.bodies import body_process as made; made.MAX_MEMORY_BYTES = 200 << 20; "
        "raise SystemExit(made.main())"
    )
    header = json.dumps({"kind": "completion", "max_model_len": CONTEXT}).encode()
    for body, code in ((b'{"prompt": [' + b"[]," * (5 << 20) + b"[]]}", 1), (b'{"prompt": [1]}', 0)):
        request = LENGTHS.pack(len(header), len(body)) + header + body
        done = subprocess.run(
            [sys.executable, "-c", program], input=request, capture_output=True, timeout=120, check=False
        )
        assert (done.returncode, bool(done.stdout), done.stderr) == (code, code == 0, b"")
