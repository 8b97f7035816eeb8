"""The console command `orca`: runs a sub-command of the installed packages.

Sub-commands are entry points of the group `orca.commands` (pyproject.toml), each a `main(argv) -> int`,
so that this module imports neither torch nor kopf. A user error prints one line and exits with
code 2, without a traceback.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from importlib.metadata import entry_points, version

from orca_protos.uncollected import uncollected

HELP = """usage: orca COMMAND [options]

commands:
  serve      run master and workers on this machine, behind one HTTP endpoint
  master     run the engine master, with workers that are started separately
  worker     run one worker, which waits for a master
  operator   run the Kubernetes operator, which creates masters and workers for OrcaDeployments
  batch      send the requests of a file to a server, and write the answers to a file
  bench      send load to a server and measure latency and throughput
  simulate   simulate a serving system under load, without its hardware
  fetch      download a model from a hub or a bucket
  drain      make a master on this host refuse new requests, and wait until it is idle

orca COMMAND --help lists the options of a command."""

INTERRUPTED = 128 + signal.SIGINT
"""The exit code after Ctrl-C."""
CLOSED_PIPE = 128 + signal.SIGPIPE
"""The exit code if nobody reads standard output any more."""
EXTRAS = {"operator": "operator", "fetch": "hub", "batch": "bench", "bench": "bench", "simulate": "bench"}
"""Command → extra that installs its dependencies; other commands need the extra `worker`."""


def main(argv: list[str] | None = None) -> int:
    """Run `orca argv…` and return its exit code."""
    try:
        try:
            code = _run(sys.argv[1:] if argv is None else argv)
        except SystemExit:  # of argparse, after the help of a command
            _flush()
            raise
        _flush()
    except KeyboardInterrupt:  # of a command that does not handle the signal, or during its imports
        return INTERRUPTED
    except BrokenPipeError:  # as of `orca --help | head -1`
        _drop_output()
        return CLOSED_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop_output()
        print(f"orca: error: {error.strerror}: free disk space", file=sys.stderr)
        return 2
    return code


def _flush() -> None:
    """Write what is left of standard output, because Python reports an error at its end with a traceback."""
    if sys.stdout is not None:  # as it is after `orca … >&-`
        sys.stdout.flush()


def _drop_output() -> None:
    """Let what is left of standard output go nowhere: Python writes it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    """Run `orca arguments…` and return its exit code; raise KeyboardInterrupt."""
    commands = {point.name: point for point in entry_points(group="orca.commands")}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP)
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(version("orca-serving"))
        return 0
    if arguments[0] not in commands:
        names = ", ".join(sorted(commands))
        print(f"orca: error: unknown command {arguments[0]!r} (choose from {names})", file=sys.stderr)
        return 2
    try:
        with uncollected():
            command = commands[arguments[0]].load()
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(arguments[0], "worker")
        print(f"orca: error: {arguments[0]} needs {error.name}: install orca-serving[{extra}]", file=sys.stderr)
        return 2
    return int(command(arguments[1:]))


if __name__ == "__main__":
    sys.exit(main())
