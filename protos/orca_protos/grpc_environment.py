"""Sets GRPC_EXPERIMENTS, which gRPC reads when it is imported: the packages of master and worker import this module.

By default each process passes every message of engine.proto through four threads of gRPC's event engine. Without them
the cores of a worker switch ten times less between threads in each iteration, which a small model notices: an increment
of one request takes 4 to 10 % less time where master and worker share two cores (docs/benchmarks/peers.md).
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

VERSION = "1.85"
"""The version of grpcio that knows the names below. One that does not would log an error."""


def _knows_names() -> bool:
    """Return whether grpcio of VERSION is installed. By its metadata: to import importlib.metadata takes 10 ms."""
    found = find_spec("grpc")
    packages = None if found is None or found.origin is None else Path(found.origin).parents[1]
    return packages is not None and any(packages.glob(f"grpcio-{VERSION}.*.dist-info"))


if _knows_names():
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
