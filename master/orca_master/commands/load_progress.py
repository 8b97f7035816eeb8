"""Shows how much of the weights the workers have read, while the engine starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import TextIO

from orca_protos.progress_display import Show, progress_display

from orca_master.engine.snapshot import LoadedBytes

logger = logging.getLogger(__name__)

MEBIBYTE = 1 << 20
POLL_SECONDS = 0.2


@contextlib.asynccontextmanager
async def load_progress(loaded: Callable[[], LoadedBytes], stream: TextIO) -> AsyncIterator[None]:
    """Show what `loaded` returns until the block is left: a bar on `stream` if it is a terminal, else log lines."""
    with progress_display("loading weights", "MiB", stream, logger.info) as show:
        following = asyncio.create_task(_follow(loaded, show))
        try:
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def _follow(loaded: Callable[[], LoadedBytes], show: Show) -> None:
    while True:
        done, total = loaded()
        if total:
            show(done // MEBIBYTE, total // MEBIBYTE)
        await asyncio.sleep(POLL_SECONDS)
