"""The console command `orca`: finds the sub-commands that the installed packages bring, and runs one.

Sub-commands are entry points of the group `orca.commands` (pyproject.toml), each a `main(argv) -> int`,
so that this file imports neither torch nor kopf. A mistake of the user ends with one line and exit
code 2, never with a traceback.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points, version

HELP = """usage: orca COMMAND [options]

commands:
  serve      master and workers on this machine, behind one HTTP endpoint
  master     the engine master alone, for workers that were started elsewhere
  worker     one worker, which waits for a master
  operator   turns OrcaDeployments of a Kubernetes cluster into masters and workers
  bench      puts load on a server and measures
  simulate   answers what a system would do with a load, without the hardware
  fetch      downloads a model from a hub
  drain      lets a master on this host finish what runs

orca COMMAND --help lists the options of a command."""

EXTRAS = {"operator": "operator", "fetch": "hub", "bench": "bench", "simulate": "bench"}
"""Extras that bring what a command needs; the others need [worker]."""


def main(argv: list[str] | None = None) -> int:
    """Run `orca argv…` and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
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
        command = commands[arguments[0]].load()
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(arguments[0], "worker")
        print(f"orca: error: {arguments[0]} needs {error.name}: install orca-serving[{extra}]", file=sys.stderr)
        return 2
    return int(command(arguments[1:]))


if __name__ == "__main__":
    sys.exit(main())
