"""`orca worker --listen ADDR` that ends when the test process that holds its standard input has ended."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

from orca_worker import cli


def end_with_the_test_process() -> None:
    """Wait for the end of standard input; ranks end with this process."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    flag, address = sys.argv[1:]
    assert flag == "--listen"
    threading.Thread(target=end_with_the_test_process, daemon=True).start()
    sys.exit(asyncio.run(cli.run(address)))
