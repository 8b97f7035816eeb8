"""`orca worker --listen ADDR` that exits with the test process, which holds its standard input."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

from orca_worker import serving


def end_with_the_test_process() -> None:
    """Wait for the end of standard input and exit; the ranks exit with this process."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    flag, address = sys.argv[1:]
    assert flag == "--listen"
    threading.Thread(target=end_with_the_test_process, daemon=True).start()
    sys.exit(asyncio.run(serving.run(address)))
