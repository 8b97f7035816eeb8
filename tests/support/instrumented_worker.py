"""`orca worker` whose rank processes run another script of this folder: `RANK.py --listen ADDR`.

Only the command that starts a rank differs from the real worker.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from orca_worker import serving


def command(script: str, *arguments: str) -> tuple[str, ...]:
    """Return the command of a worker whose ranks run tests/support/`script`."""
    return (sys.executable, __file__, script, *arguments)


if __name__ == "__main__":
    *script, flag, address = sys.argv[1:]
    assert flag == "--listen"
    rank = (sys.executable, str(Path(__file__).parent / script[0]), *script[1:])
    sys.exit(asyncio.run(serving.run(address, rank_command=rank)))
