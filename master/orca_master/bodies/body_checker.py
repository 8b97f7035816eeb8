"""`BodyChecker`: validates small bodies on the event loop, large bodies one by one in a process (body_process.py).

Parsing JSON holds the interpreter lock: a large body would block all other requests and the probes. The process
starts with the first large body. It is killed when a body takes too long or its client disconnects, and exits when a
body needs too much memory; the next large body starts a new process.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from orca_protos.exit_code import is_sent

from orca_master.bodies.body_process import LENGTHS, MAX_MEMORY_BYTES
from orca_master.bodies.bounded_turns import ANYONE, BoundedTurns, Caller
from orca_master.bodies.lengths import Lengths
from orca_master.bodies.validation import check_body, unpack
from orca_master.errors import EngineUnavailableError, RequestError
from orca_master.threads import started_threads

SMALL_BYTES = 128 << 10
"""Maximum size of a body that is validated on the event loop."""
CHECK_SECONDS = 30.0
NUM_THREADS = 4
"""One exchanges a body; others wait for the end of killed processes, or start one that the next body uses."""
_PIECE_BYTES = 1 << 20
Result = TypeVar("Result")


class BodyChecker:
    """Validates bodies; used from one event loop."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._starting: asyncio.Future[subprocess.Popen[bytes]] | None = None
        self._turns = BoundedTurns("large bodies")
        self._threads = started_threads(NUM_THREADS, "bodies")

    async def check(self, kind: str, body: bytearray, lengths: Lengths, caller: Caller = ANYONE) -> Any:
        """Return the value of a body of `kind` (validation.KINDS), and clear `body` if it is large.

        Raises RequestError; QueueFullError if many large bodies wait, or if this body waits too long;
        EngineUnavailableError if the process cannot be started or is killed. Cancellation kills a process that
        validates the body.
        """
        if len(body) <= SMALL_BYTES:
            return check_body(kind, body, lengths)
        await self._turns.acquire(caller, len(body))
        try:
            reply, token_ids = await self._ask(kind, body, lengths)
        finally:
            self._turns.release(caller)
        if "error" in reply:
            raise RequestError(reply["error"], reply["field"], reply["code"])
        return unpack(kind, reply, token_ids)

    async def _ask(self, kind: str, body: bytearray, lengths: Lengths) -> tuple[dict[str, Any], bytes]:
        size = len(body)
        process = await self._started()
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                return await self._on_thread(_exchange, process, kind, body, lengths)
        except TimeoutError as error:
            self._kill()
            raise RequestError(f"the body of {size} bytes cannot be read within {CHECK_SECONDS:.0f} s") from error
        except (OSError, EOFError) as error:
            self._kill()
            if is_sent(await self._on_thread(process.wait)):
                raise EngineUnavailableError("the process that checks large bodies was killed: retry") from error
            raise RequestError(
                f"the body of {size} bytes cannot be read within {MAX_MEMORY_BYTES >> 20} MiB of memory"
            ) from error
        except BaseException:
            self._kill()
            raise

    async def _started(self) -> subprocess.Popen[bytes]:
        """Return the running process. Cancelling the caller does not cancel the start: the next large body uses it."""
        if self._process is None or self._process.poll() is not None:  # the idle process may have been killed
            self._starting = self._starting or self._on_thread(_start)
            try:
                self._process = await asyncio.shield(self._starting)
            except OSError as error:  # a limit of descriptors or processes is reached
                message = f"the process that checks large bodies does not start: {error.strerror}"
                raise EngineUnavailableError(message) from error
            finally:
                if self._starting.done():
                    self._starting = None
        return self._process

    def _kill(self) -> None:
        """Kill the process. A thread in `_exchange` then gets OSError or EOFError."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._on_thread(process.wait)  # reap the zombie

    def _on_thread(self, function: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "orca_master.bodies.body_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches only the server; this process ends with its standard input
    )


def _exchange(
    process: subprocess.Popen[bytes], kind: str, body: bytearray, lengths: Lengths
) -> tuple[dict[str, Any], bytes]:
    """Send a body, clear it, and return the reply; raise OSError or EOFError if the process ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    header = json.dumps({"kind": kind, "max_model_len": lengths.max_model_len}).encode()
    process.stdin.write(LENGTHS.pack(len(header), len(body)) + header)
    with memoryview(body) as view:
        for start in range(0, len(view), _PIECE_BYTES):
            process.stdin.write(view[start : start + _PIECE_BYTES])
    process.stdin.flush()
    body.clear()
    header_length, num_bytes = LENGTHS.unpack(_read(process, LENGTHS.size))
    reply = json.loads(_read(process, header_length))
    return reply, _read(process, num_bytes)


def _read(process: subprocess.Popen[bytes], size: int) -> bytes:
    assert process.stdout is not None
    data = process.stdout.read(size)
    if len(data) < size:
        raise EOFError
    return data
