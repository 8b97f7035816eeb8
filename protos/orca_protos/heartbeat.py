"""Signs of life for the process that started a worker or a master and restarts it, such as `orca serve`."""

from __future__ import annotations

import asyncio
import os

INTERVAL_SECONDS = 1.0


async def beat(descriptor: int) -> None:
    """Write a byte to the pipe `descriptor` every INTERVAL_SECONDS, until its reader has ended.

    A process that is stopped, or whose event loop is blocked, writes none.
    """
    os.set_blocking(descriptor, False)
    while True:
        try:
            os.write(descriptor, b".")
        except BlockingIOError:  # nobody reads, for hours
            pass
        except OSError:
            return
        await asyncio.sleep(INTERVAL_SECONDS)
