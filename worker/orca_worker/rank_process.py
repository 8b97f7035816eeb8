"""`RankProcess`: the controller's handle of one rank process: sends commands, detects its exit.

The rank is a new interpreter (exec, never fork), so no gRPC state is copied. Its standard error is copied to this
process's, and the last lines become part of the message of a fault.

Every cold command has a number, which the rank's replies repeat. Replies to a command that was cancelled or timed out
are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from orca_protos import engine_pb2 as pb
from orca_protos.deadlines import LIFE_SECONDS, PING_INTERVAL
from orca_protos.faults import MAX_MESSAGE_BYTES, cut
from orca_protos.process_state import is_stopped

from orca_worker.cgroup import oom_kills
from orca_worker.errors import FaultError, ModelError
from orca_worker.last_lines import LAST_LINES, copy_pipe
from orca_worker.rank_connection import RankConnection
from orca_worker.rank_exit import RankExit, exit_code, explain_exit
from orca_worker.rank_start import StartedRank

Question = Callable[[pb.RendezvousRequest], Awaitable[pb.RendezvousReply]]
"""Answers a rank's rendezvous request; never raises."""
PING = pb.RankCommand(ping=pb.PingRequest())
EXIT_SECONDS = 5.0
LINES_SECONDS = 1.0
"""How long the last lines of standard error may take after the exit: another process may have it open."""
ANSWERS = {
    "load": "load",
    "prepare": "prepared",
    "form": "formed",
    "warmup": "warmed_up",
    "allocate": "allocated",
    "change_adapters": "adapters_changed",
    "unload": "unloaded",
    "ping": "pong",
}
"""The kind of reply that answers each kind of cold command."""


class RankProcess:
    """One rank process, created by `adopt`.

    `on_reply` gets results and timings, `on_fault` the first fault that ends the rank and faults of kind CONSEQUENCE,
    after which the rank may run on, `on_question` answers the rank's rendezvous requests.
    """

    def __init__(
        self,
        started: StartedRank,
        on_reply: Callable[[pb.RankReply], None],
        on_fault: Callable[[pb.Fault], None],
        on_question: Question,
    ) -> None:
        self._partition = 0
        self._tensor_rank = 0
        self._cores: Sequence[int] = ()
        self._process = started.process
        self._connection = RankConnection(started.controller_end, self._take)
        self._on_reply = on_reply
        self._on_fault = on_fault
        self._on_question = on_question
        self._answering: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[pb.RankReply]] = {}
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._fault: pb.Fault | None = None
        """The fault that ended the rank."""
        self._consequence: pb.Fault | None = None
        """The rank's report that it lost another rank in the present epoch: the cause of a later exit is elsewhere."""
        self._ending = False
        self._epoch = 0
        self._has_replied = False
        self.loaded: pb.ModelFacts | None = None
        """The facts of the loaded partition, as of the last reply; None without a partition and after a failure."""
        self._oom_kills = oom_kills()
        self._tasks = [
            asyncio.create_task(self._wait_for_end()),
            asyncio.create_task(copy_pipe(started.process.stderr, self._last_lines)),
        ]

    @classmethod
    async def adopt(
        cls,
        started: StartedRank,
        on_reply: Callable[[pb.RankReply], None],
        on_fault: Callable[[pb.Fault], None],
        on_question: Question,
    ) -> RankProcess:
        """Take over a started process. It is rank 0, unless `become` says otherwise."""
        rank = cls(started, on_reply, on_fault, on_question)
        await rank._connection.open()
        return rank

    @property
    def failed(self) -> bool:
        """True if the process has ended or is being killed."""
        return self._fault is not None

    def become(self, tensor_rank: int, cores: Sequence[int]) -> None:
        """Set the rank that the process will have from the next load on, and the cores to pin it to (empty: none)."""
        self._tensor_rank, self._cores = tensor_rank, cores

    def send(self, command: pb.RankCommand) -> None:
        """Put a command into the rank's local queue. Never blocks."""
        if self._fault is None:
            self._connection.write(command)

    async def ask(self, command: pb.RankCommand, timeout: float) -> pb.RankReply:
        """Send a cold command and return its last reply; see `answers`."""
        async with contextlib.aclosing(self.answers(command, timeout)) as answers:
            async for reply in answers:
                last = reply
        return last

    async def answers(self, command: pb.RankCommand, timeout: float) -> AsyncGenerator[pb.RankReply, None]:
        """Send a cold command and yield its replies: the progress of a load, and the last reply.

        Raises ModelError if the rank refuses the command, FaultError if the rank fails. A rank without a reply for
        `timeout` seconds, or with a reply of the wrong kind, is killed.
        """
        kind = command.WhichOneof("command")
        if kind == "load":
            self._partition = command.load.partition
        elif kind == "prepare":
            self._epoch, self._consequence = command.prepare.epoch, None
            self._last_lines.clear()  # what happened before explains nothing that happens in this epoch
            self._oom_kills = oom_kills()
        elif kind == "unload":
            self._epoch, self._consequence = 0, None
            self._last_lines.clear()
            self._oom_kills = oom_kills()
        number = next(self._numbers)
        queue = self._waiting[number] = asyncio.Queue()
        try:
            numbered = pb.RankCommand(number=number)
            numbered.MergeFrom(command)
            if kind == "load":
                numbered.tensor_rank = self._tensor_rank
                numbered.core.extend(self._cores)
            self.send(numbered)
            while True:
                if self._fault is not None:
                    raise FaultError(self._fault)
                reply = await self._next_reply(queue, kind, timeout)
                if reply.WhichOneof("reply") == "fault":
                    if reply.fault.kind == pb.FAULT_KIND_REQUEST:
                        raise ModelError(reply.fault.message)
                    raise FaultError(reply.fault)
                if reply.WhichOneof("reply") != ANSWERS[kind]:
                    raise FaultError(self._kill(f"replied to {kind} with {reply.WhichOneof('reply')}").fault)
                yield reply
                if kind != "load" or reply.load.HasField("facts"):
                    return
        finally:
            del self._waiting[number]

    async def _next_reply(self, queue: asyncio.Queue[pb.RankReply], kind: str, timeout: float) -> pb.RankReply:
        """Wait for a reply to a command of `kind`; kill a rank that is late, or gives no sign of life meanwhile."""
        clock = asyncio.get_running_loop().time
        deadline, stopped = clock() + timeout, 0
        while (left := deadline - clock()) > 0:
            with contextlib.suppress(TimeoutError):
                # Not `wait_for`: in Python 3.11 it drops a cancellation that comes with the reply.
                async with asyncio.timeout(left if kind == "ping" else min(left, PING_INTERVAL)):
                    return await queue.get()
            if kind == "ping" or deadline - clock() < LIFE_SECONDS:
                continue
            if self._has_replied:
                with contextlib.suppress(FaultError):  # is in the queue, too
                    await self.ask(PING, LIFE_SECONDS)
            elif (stopped := stopped + 1 if is_stopped(self._process.pid) else 0) > 1:
                return self._kill("has been stopped by a signal")
        return self._kill(f"did not reply to {kind} within {timeout:.0f} s")

    async def end(self) -> None:
        """End the process within EXIT_SECONDS and fail all pending commands; `on_fault` is not called."""
        self._ending = True
        self._fail(self._own_fault(RankExit("was ended by its controller")))
        self._connection.close()
        if not self._has_replied and self._process.poll() is None:
            self._process.kill()  # it imports torch, and would not notice the closed socket for seconds
        try:
            await exit_code(self._process, EXIT_SECONDS)
        finally:  # also if this call is cancelled
            if self._process.poll() is None:
                self._process.kill()
        await exit_code(self._process, EXIT_SECONDS)  # None: a process in an uninterruptible wait
        await asyncio.wait(self._tasks[1:], timeout=LINES_SECONDS)
        for task in (tasks := [*self._tasks, *self._answering]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for_end(self) -> None:
        """Wait for the end of the connection and of the process; a rank without an earlier fault has ended then."""
        if (error := await self._connection.ended) is not None:
            self._kill(f"sent {error}")
            return
        while (code := await exit_code(self._process, EXIT_SECONDS)) is None:  # a rank with a closed socket is unusable
            self._process.kill()
        await asyncio.wait(self._tasks[1:], timeout=LINES_SECONDS)
        self._fail(self._consequence or self._own_fault(explain_exit(code, self._oom_kills, self._last_lines)))

    def _take(self, reply: pb.RankReply) -> None:
        self._has_replied = True
        kind = reply.WhichOneof("reply")
        if kind == "fault":
            reply.fault.tensor_rank = self._tensor_rank
        if kind == "load" and reply.load.HasField("facts"):
            self.loaded = reply.load.facts
        elif kind == "unloaded":
            self.loaded = None
        if kind in ("result", "timing"):
            if self._tensor_rank == 0:  # the other ranks compute the same iteration
                self._on_reply(reply)
        elif kind == "rendezvous":
            answering = asyncio.create_task(self._answer(reply))
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)
        elif kind == "fault" and reply.fault.kind == pb.FAULT_KIND_CONSEQUENCE:
            self._consequence = reply.fault
            if reply.number in self._waiting:
                self._waiting[reply.number].put_nowait(reply)
            self._on_fault(reply.fault)
        elif kind == "fault" and reply.fault.kind != pb.FAULT_KIND_REQUEST:
            self._fail(reply.fault)
        elif reply.number == 0 or kind is None:
            self._kill(f"sent {kind or 'a reply of an unknown kind'} without a command")
        elif reply.number in self._waiting:
            self._waiting[reply.number].put_nowait(reply)

    async def _answer(self, question: pb.RankReply) -> None:
        answer = await self._on_question(question.rendezvous)
        self.send(pb.RankCommand(rendezvous=answer, number=question.number))

    def _own_fault(self, cause: RankExit) -> pb.Fault:
        """Return a fault of this rank that the controller detected."""
        # A rank that its controller ends, because of another rank or another model, is not the cause.
        kind = pb.FAULT_KIND_CONSEQUENCE if self._ending else pb.FAULT_KIND_CAUSE
        return pb.Fault(
            message=cut(f"rank {self._tensor_rank} {cause.message}", MAX_MESSAGE_BYTES),
            kind=kind,
            epoch=self._epoch,
            partition=self._partition,
            tensor_rank=self._tensor_rank,
            out_of_memory=cause.out_of_memory,
            outside=cause.outside,
        )

    def _kill(self, message: str) -> pb.RankReply:
        """Kill a rank that violates the protocol; return the fault as a reply."""
        self._fail(self._own_fault(RankExit(message)))
        if self._process.poll() is None:
            self._process.kill()
        return pb.RankReply(fault=self._fault)

    def _fail(self, fault: pb.Fault) -> None:
        """Record the fault that ends this rank, unless there is an earlier one, and fail all pending commands."""
        if self._fault is None:
            self._fault, self.loaded = fault, None
            if not self._ending and fault is not self._consequence:
                self._on_fault(fault)
            for queue in self._waiting.values():
                queue.put_nowait(pb.RankReply(fault=fault))
