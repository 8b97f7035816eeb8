"""Calls side by side: which error is raised, and that none is left running."""

from __future__ import annotations

import asyncio

import pytest
from orca_protos.together import together


class ConsequenceError(Exception):
    """May have been caused by another call's error."""


async def value(result: int) -> int:
    return result


async def fail(error: Exception, seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds)
    raise error


def run(*calls, seconds: float = 30.0):
    """Run calls; of several errors the last that is no consequence is the cause."""

    def choose(errors: list[BaseException]) -> BaseException:
        return min(errors, key=lambda error: isinstance(error, ConsequenceError))

    return asyncio.run(
        asyncio.wait_for(together(calls, lambda error: not isinstance(error, ConsequenceError), seconds, choose), 60)
    )


def test_results_come_in_the_order_of_the_calls():
    async def late(result: int) -> int:
        await asyncio.sleep(0.05)
        return result

    assert run(late(1), value(2)) == [1, 2]
    assert run() == []


def test_a_cause_ends_the_wait_and_cancels_the_rest():
    cancelled = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    with pytest.raises(ValueError, match="cause"):
        run(forever(), fail(ValueError("cause")))
    assert cancelled == [True]


def test_after_a_consequence_the_cause_is_waited_for():
    with pytest.raises(ValueError, match="cause"):
        run(fail(ConsequenceError()), fail(ValueError("cause"), 0.05))


def test_a_consequence_alone_is_raised_after_the_grace():
    with pytest.raises(ConsequenceError):
        run(fail(ConsequenceError()), asyncio.Event().wait(), seconds=0.05)
