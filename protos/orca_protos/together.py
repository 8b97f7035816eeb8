"""`together`: concurrent calls to several ranks or workers, of whose errors only one is the cause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any


async def together(
    calls: Iterable[Coroutine[Any, Any, Any]],
    is_conclusive: Callable[[BaseException], bool],
    seconds: float,
    choose: Callable[[list[BaseException]], BaseException],
) -> list[Any]:
    """Await `calls` concurrently and return their results in order.

    A conclusive error ends the wait immediately. After an error that another error may have caused, the other calls
    have `seconds` to finish. Raises the error that `choose` returns for the errors so far; pending calls are cancelled.
    """
    loop = asyncio.get_running_loop()
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        errors: list[BaseException] = []
        pending, until = set(tasks), None
        while pending:
            timeout = None if until is None else max(until - loop.time(), 0)
            done, pending = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_EXCEPTION)
            errors += [error for task in tasks if task in done and (error := task.exception()) is not None]
            if not done or any(map(is_conclusive, errors)):
                break
            if errors and until is None:
                until = loop.time() + seconds
        if errors:
            raise choose(errors)
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
