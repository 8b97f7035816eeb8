"""Imports of the scripts in benchmarks/peers, which are no package and are named like the engines that they start."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


@contextlib.contextmanager
def peer_program(name: str) -> Iterator[ModuleType]:
    """Import a script of benchmarks/peers; at the end neither the script nor its helpers can be imported any more."""
    before = dict(sys.modules)
    sys.path.insert(0, str(PEERS))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(PEERS))
        for added, module in list(sys.modules.items()):
            if added not in before and str(PEERS) in (getattr(module, "__file__", None) or ""):
                del sys.modules[added]
