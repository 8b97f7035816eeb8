"""Sets GRPC_EXPERIMENTS, which gRPC reads when it is imported: the packages of master and worker import this module.

By default each process passes every message of engine.proto through four threads of gRPC's event engine. Without them
the cores of a worker have 10 switches less between threads in each iteration, which a small model notices: an increment
of one request takes 4 to 10 % less time where master and worker share two cores (docs/benchmarks/peers.md).
"""

from __future__ import annotations

import contextlib
import os
from importlib.metadata import PackageNotFoundError, version

VERSION = "1.85."
"""The versions of grpcio that know the names below. A version that does not would log an error."""

with contextlib.suppress(PackageNotFoundError):  # the image of the operator has the package of the master and no gRPC
    if version("grpcio").startswith(VERSION):
        os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
