"""`RankProcess`: the controller's end of one rank: spawns it, passes commands, notices its death.

The rank is a fresh interpreter (exec, never fork), so no gRPC state is copied. Its standard error is
passed on, and the last lines are kept for the message of a fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from orca_protos import engine_pb2 as pb

from orca_worker.cgroup import memory_limit, oom_kills
from orca_worker.errors import ModelError, RankError, RankMemoryError
from orca_worker.frames import encode, read_reply

RANK_COMMAND = (sys.executable, "-m", "orca_worker.rank")
LAST_LINES = 5
EXIT_SECONDS = 5.0
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
"""torch asks for huge pages: reading scattered K/V blocks costs a fifth less time on the CPU."""


class RankProcess:
    """One rank, made by `spawn`.

    `on_reply` gets results and timings; `on_gone` is called when the rank's socket closes, `on_fault` with
    the reason as soon as it is known.
    """

    def __init__(
        self,
        tensor_rank: int,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_reply: Callable[[pb.RankReply], None],
        on_gone: Callable[[], None],
        on_fault: Callable[[str], None],
    ) -> None:
        self._tensor_rank = tensor_rank
        self._process = process
        self._writer = writer
        self._on_reply = on_reply
        self._on_gone = on_gone
        self._on_fault = on_fault
        self._answers: asyncio.Queue[pb.RankReply] = asyncio.Queue()
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._fault = ""
        self._error_type = RankError
        self._oom_kills = oom_kills()
        self._tasks = [
            asyncio.create_task(self._read(reader)),
            asyncio.create_task(self._read_errors()),
        ]

    @classmethod
    async def spawn(
        cls,
        tensor_rank: int,
        store_host: str,
        environment: Mapping[str, str],
        command: Sequence[str],
        on_reply: Callable[[pb.RankReply], None],
        on_gone: Callable[[], None],
        on_fault: Callable[[str], None],
    ) -> RankProcess:
        """Starts a rank process with `environment` on top of this one's."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command,
                *("--fd", str(theirs.fileno()), "--tensor-rank", str(tensor_rank), "--store-host", store_host),
                pass_fds=(theirs.fileno(),),
                stderr=asyncio.subprocess.PIPE,
                env={**HUGE_PAGES, **os.environ, **environment},
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(tensor_rank, process, reader, writer, on_reply, on_gone, on_fault)

    def send(self, command: pb.RankCommand) -> None:
        """Puts a command into the rank's local queue. Never blocks."""
        if not self._fault:
            self._writer.write(encode(command))

    async def ask(self, command: pb.RankCommand, timeout: float) -> pb.RankReply:
        """Sends a cold command and returns its answer.

        Raises ModelError if the rank refuses it, RankError if it fails or stays silent for `timeout` seconds.
        """
        self.send(command)
        return await self.answer(timeout)

    async def answer(self, timeout: float) -> pb.RankReply:
        """Returns the next answer to a cold command; raises as `ask` does."""
        if self._fault:
            raise self._error_type(self._fault)
        try:
            reply = await asyncio.wait_for(self._answers.get(), timeout)
        except TimeoutError as error:
            raise RankError(f"rank {self._tensor_rank} gave no answer within {timeout:.0f} s") from error
        if reply.HasField("fault"):
            raise (ModelError if reply.fault.user_error else self._error_type)(reply.fault.message)
        return reply

    async def end(self) -> None:
        """Ends the process within a bound and waits for it."""
        self._writer.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), EXIT_SECONDS)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while (reply := await read_reply(reader)) is not None:
            kind = reply.WhichOneof("reply")
            if kind in ("result", "timing"):
                self._on_reply(reply)
                continue
            if kind == "fault" and not reply.fault.user_error:
                self._fail(reply.fault.message)
            self._answers.put_nowait(reply)
        self._on_gone()
        code = await self._process.wait()
        died = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if code == -signal.SIGKILL and oom_kills() > self._oom_kills:
            self._error_type = RankMemoryError
            died = f"out of memory: the container's limit is {(memory_limit() or 0) >> 20} MiB"
        await asyncio.wait(self._tasks[1:], timeout=1.0)  # let the last lines arrive
        self._fail("; ".join((f"rank {self._tensor_rank} ended: {died}", *self._last_lines)))
        self._answers.put_nowait(pb.RankReply(fault=pb.RankFault(message=self._fault)))

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            text = line.decode(errors="replace").rstrip()
            self._last_lines.append(text)
            print(text, file=sys.stderr, flush=True)

    def _fail(self, message: str) -> None:
        if not self._fault:
            self._fault = message
            self._on_fault(message)
