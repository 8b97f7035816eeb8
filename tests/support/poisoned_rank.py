"""A rank on which an iteration fails that has a certain input token four times in a row.

Arguments: the token, and `raise` (an exception) or `crash` (SIGSEGV).
"""

from __future__ import annotations

import os
import signal
import sys

from orca_worker import rank
from orca_worker.stage import Stage

token, end = int(sys.argv.pop(1)), sys.argv.pop(1)
execute = Stage.execute


def poisoned(self, iteration):
    tokens = list(iteration.token)
    if any(tokens[start : start + 4] == [token] * 4 for start in range(len(tokens))):
        if end == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        raise RuntimeError(f"no kernel for token {token}")
    return execute(self, iteration)


Stage.execute = poisoned
rank.run_as_process()
