"""Batches: what `Scheduler.select` proposes, and what `Scheduler.dispatch` makes of a proposal."""

from __future__ import annotations

from dataclasses import dataclass

from orca_master.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class Selection:
    """A request that `select` proposes, with the number of its tokens to compute."""

    request: Request
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """What `select` proposes: a batch, empty if nothing can run, and whom to preempt to make room for it."""

    selections: tuple[Selection, ...] = ()
    preempted: tuple[Request, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.selections)


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's part of a dispatched batch: the row of an Iteration (protos/engine.proto)."""

    request: Request
    incarnation: int
    row: int
    num_tokens: int
    context_length: int
    new_blocks: tuple[int, ...]
    admitted: bool
    samples: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """A dispatched batch: one iteration of one pipeline."""

    pipeline: str
    requests: tuple[ScheduledRequest, ...]
