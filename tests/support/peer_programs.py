"""Imports of the scripts in benchmarks and benchmarks/peers, which are no packages."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PEERS = BENCHMARKS / "peers"


@contextlib.contextmanager
def peer_program(name: str, folder: Path = PEERS) -> Iterator[ModuleType]:
    """Import a script of a folder; at the end neither the script nor its helpers can be imported any more.

    Scripts of benchmarks/peers are named like the engines that they start.
    """
    before = dict(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        for added, module in list(sys.modules.items()):
            if added not in before and str(folder) in (getattr(module, "__file__", None) or ""):
                del sys.modules[added]
