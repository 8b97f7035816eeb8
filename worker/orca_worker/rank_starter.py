"""`RankStarter`: starts the rank processes of a worker, and keeps a spare process for the next rank that fails.

Importing torch takes an interpreter a second, most of the pause after the end of a rank. The spare process has imported
torch and waits for a Load. So do the early ranks, which are started before the first Load (early_ranks.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from orca_protos import engine_pb2 as pb
from orca_protos.deadlines import LOAD_SILENCE, PING_SECONDS

from orca_worker.cgroup import host_memory, memory_left
from orca_worker.errors import FaultError
from orca_worker.rank_process import PING, Question, RankProcess
from orca_worker.rank_start import RankStart, StartedRank, start_rank

logger = logging.getLogger(__name__)

SPARE_DELAY = 5.0
"""Seconds from a formation to the start of a spare, so that its imports do not delay the first iterations."""
SPARE_BYTES = 1 << 30
"""Memory that must be free for a spare: several times what it takes."""


class RankStarter:
    """`on_reply`, `on_fault` and `on_question`: see RankProcess. `keeps_spare`: False to save a spare's memory."""

    def __init__(
        self,
        on_reply: Callable[[pb.RankReply], None],
        on_fault: Callable[[pb.Fault], None],
        on_question: Question,
        keeps_spare: bool = False,
    ) -> None:
        self._on_reply = on_reply
        self._on_fault = on_fault
        self._on_question = on_question
        self._keeps_spare = keeps_spare
        self._spare: tuple[RankStart, RankProcess] | None = None
        self._spare_answers = False
        """The spare has imported torch, and its reader thread has answered."""
        self._starting: asyncio.Task[None] | None = None
        self._early: list[tuple[RankStart, RankProcess]] = []

    async def adopt_early(self, started: Sequence[tuple[RankStart, StartedRank]]) -> None:
        """Take over processes that were started for the ranks that the first Load will probably start."""
        for start, rank in started:
            self._early.append((start, await self._adopt(rank)))

    async def end_early(self) -> None:
        """End the early ranks that no Load has used."""
        early, self._early = self._early, []
        await asyncio.gather(*(process.end() for _, process in early))

    async def start(self, tensor_rank: int, start: RankStart) -> RankProcess:
        """Return a process for rank `tensor_rank`: an early rank, the spare, or a new process.

        Raises OSError if none can be started.
        """
        for early in self._early:
            if start.may_use(early[0]) and not early[1].failed:
                self._early.remove(early)
                early[1].become(tensor_rank, start.cores)
                return early[1]
        await self._cancel()
        spare = self._spare
        fits = spare is not None and start.may_use(spare[0]) and await self._lives(spare[1])
        self._spare = None  # not before: a load that is cancelled meanwhile leaves it
        if spare is not None and fits:
            process = spare[1]
        else:
            if spare is not None:
                await spare[1].end()
            process = await self._spawn(start)
        process.become(tensor_rank, start.cores)
        return process

    def prepare_spare(self, start: RankStart) -> None:
        """Start a spare for `start` after SPARE_DELAY, unless there is one or memory is scarce."""
        if not self._keeps_spare or (self._starting is not None and not self._starting.done()):
            return
        if self._spare is None or self._spare[1].failed:
            self._starting = asyncio.create_task(self._start_spare(start))

    async def end(self) -> None:
        """End the spare and the early ranks."""
        await self.end_early()
        await self._cancel()
        spare, self._spare = self._spare, None
        if spare is not None:
            await spare[1].end()

    async def _start_spare(self, start: RankStart) -> None:
        await asyncio.sleep(SPARE_DELAY)
        left = memory_left()
        free = host_memory() if left is None else min(host_memory(), left)
        if free < SPARE_BYTES:
            logger.info("no spare rank is started: %d MiB are free, %d are wanted", free >> 20, SPARE_BYTES >> 20)
            return
        try:
            self._spare, self._spare_answers = (start, await self._spawn(start)), False
        except OSError as error:
            logger.info("no spare rank is started: %s", error)
            return
        with contextlib.suppress(FaultError):
            await self._spare[1].ask(PING, LOAD_SILENCE.worker)
            self._spare_answers = True

    async def _lives(self, spare: RankProcess) -> bool:
        """Return True if the spare answers at once, or is still being started: its load has a bound."""
        if self._spare_answers:
            with contextlib.suppress(FaultError):
                await spare.ask(PING, PING_SECONDS)
        return not spare.failed

    async def _cancel(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
            self._starting = None

    async def _spawn(self, start: RankStart) -> RankProcess:
        return await self._adopt(start_rank(start))

    async def _adopt(self, started: StartedRank) -> RankProcess:
        return await RankProcess.adopt(started, self._on_reply, self._on_fault, self._on_question)
