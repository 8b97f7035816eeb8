"""At a limit of threads: requests need no new thread, and a child process without one leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from orca_master.api_processes import pool
from orca_master.api_processes.pool import ApiProcesses
from orca_master.batches.disk_threads import DiskThreads
from orca_master.bodies.body_checker import SMALL_BYTES, BodyChecker
from orca_master.bodies.lengths import Lengths
from orca_master.engine.token_masks import TokenMasks
from orca_master.errors import EngineUnavailableError
from orca_master.journal.folder_lock import when_free
from orca_master.text.encoder import NUM_THREADS, SHORT, Encoder
from orca_master.text.grammar_compiler import GrammarCompiler
from orca_master.text.tokenizer import TextCodec
from orca_master.threads import start_process
from support.no_threads import no_threads

MODEL = Path(__file__).parents[2] / "examples" / "demo-model"
BOUND = 60.0


def children() -> set[int]:
    """Return the child processes of this process, also those that have ended and are not waited for.

    A thread that ends meanwhile, as one of an earlier test, gives its children to another one: then all are read again.
    """
    for _ in range(100):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            texts = [(task / "children").read_text() for task in Path("/proc/self/task").iterdir()]
            return {int(child) for text in texts for child in text.split()}
    raise AssertionError("a thread ended in each of 100 attempts to read the child processes")


def test_texts_are_tokenized():
    async def run() -> None:
        encoder = Encoder(TextCodec(MODEL))
        with no_threads():
            async with asyncio.timeout(BOUND):
                for _ in range(NUM_THREADS + 1):
                    assert await encoder.encode("a" * (SHORT + 1), "prompt", True, Lengths(1024))

    asyncio.run(run())


def test_large_bodies_are_checked_also_after_a_deadline():
    body = json.dumps({"prompt": "a" * SMALL_BYTES}).encode()

    async def run() -> None:
        checker = BodyChecker()
        with no_threads():
            async with asyncio.timeout(BOUND):
                for _ in range(3):
                    checking = asyncio.create_task(checker.check("completion", bytearray(body), Lengths(1024)))
                    await asyncio.sleep(0)
                    checking.cancel()
                    await asyncio.gather(checking, return_exceptions=True)
                    await checker.check("completion", bytearray(body), Lengths(1024))
        checker._kill()
        checker._threads.shutdown()

    before = children()
    asyncio.run(run())
    assert children() == before


def test_files_of_batches_are_read():
    async def run() -> None:
        threads = DiskThreads()
        with no_threads():
            assert await threads.run(max, 1, 2) == 2
        threads.close()

    asyncio.run(run())


def test_masks_are_made():
    async def run() -> int:
        masks = TokenMasks(lambda request, reason: None)
        with no_threads():
            return await asyncio.get_running_loop().run_in_executor(masks._thread, max, 1, 2)

    assert asyncio.run(run()) == 2


def test_a_folder_is_opened_and_the_event_loop_ends():
    assert asyncio.run(when_free(lambda _: threading.get_ident(), 0.0)) != threading.get_ident()

    async def run() -> None:
        await when_free(lambda _: 1, 0.0)
        limit.enter_context(no_threads())

    with contextlib.ExitStack() as limit:
        asyncio.run(run())


def test_a_start_without_threads_is_an_error_in_one_line():
    for make in (lambda: Encoder(TextCodec(MODEL)), BodyChecker, DiskThreads, lambda: TokenMasks(lambda *_: None)):
        with no_threads(), pytest.raises(EngineUnavailableError, match=r"^can't start new thread: .* is reached"):
            make()


def test_a_grammar_gets_503_and_no_process_is_left():
    """asyncio before Python 3.12 starts the thread that waits for the process when the process runs already."""

    async def run() -> None:
        compiler = GrammarCompiler(MODEL, lambda note: None)
        await compiler.prepare()
        before = children()
        with no_threads():
            for _ in range(2):
                with pytest.raises(EngineUnavailableError, match="does not start: can't start new thread"):
                    await compiler._exchange({"kind": "regex", "text": "a", "reasoning": ""})
            while children() != before:
                await asyncio.sleep(0.01)
        assert "grammar" in await compiler._exchange({"kind": "regex", "text": "a", "reasoning": ""})
        await compiler.close()

    asyncio.run(asyncio.wait_for(run(), BOUND))


def test_an_api_process_is_started_again_and_no_other_is_left(monkeypatch, tmp_path, caplog):
    """Else two of them would take connections from one listener."""
    monkeypatch.setattr(pool, "RESTART_SECONDS", 0.01)
    before = children()

    async def run() -> None:
        engine = SimpleNamespace(config=SimpleNamespace(drain_timeout=60.0))
        server = SimpleNamespace(offenders=asyncio.Queue(), announce=lambda: None)
        with no_threads():
            processes = ApiProcesses(cast(Any, engine), cast(Any, server), tmp_path, [socket.socket()])
            while caplog.text.count("is tried again") < 2:
                await asyncio.sleep(0.01)
            await processes.end()
            while children() != before:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), BOUND))


def test_a_process_writes_its_log_where_its_parent_does(capfd):
    """An API process logs without a bound: once a pipe that nobody reads is full, it would answer no more."""
    line = "x" * (1 << 20)

    async def run() -> int:
        writes = f"import sys; print(sys.stdin.read()); sys.stderr.write({line[0]!r} * {len(line)})"
        process = await start_process(sys.executable, "-c", writes, stdin=asyncio.subprocess.PIPE)
        assert (process.stdout, process.stderr) == (None, None)
        await process.communicate(b"read")
        return await process.wait()

    assert asyncio.run(asyncio.wait_for(run(), BOUND)) == 0
    assert capfd.readouterr() == ("read\n", line)
