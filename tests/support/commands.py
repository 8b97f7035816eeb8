"""`outcomes`: runs many `orca` commands as processes that are forked from one interpreter, which has imported them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

PROGRAM = """
import json, os, sys, tempfile, traceback
from importlib.metadata import entry_points
from orca_master.cli import main

commands = json.load(sys.stdin)
for point in entry_points(group="orca.commands"):
    if point.name in {arguments[0] for arguments in commands}:
        point.load()
found = []
for arguments in commands:
    with tempfile.TemporaryFile("w+") as errors:
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(errors.fileno(), 2)
            try:
                code = main(arguments)
            except SystemExit as end:
                code = end.code or 0
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        errors.seek(0)
        found.append([os.waitstatus_to_exitcode(status), errors.read()])
print(json.dumps(found))
"""


def outcomes(commands: Sequence[Sequence[str]]) -> list[tuple[int, str]]:
    """Return the exit code and the standard error of each command, all within 120 s."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM], input=json.dumps(commands), capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    return [(code, errors) for code, errors in json.loads(done.stdout)]
