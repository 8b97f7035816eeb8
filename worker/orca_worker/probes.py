"""The probe port of a worker (docs/contracts.md, section 6): read-only, and never about its neighbours.

/startupz and /livez: the control loop runs. /readyz: the weights are loaded. /drained answers when no master uses this
worker any more, within a bound: a pod's preStop hook waits on it, so that a worker outlasts its master's drain.
"""

from __future__ import annotations

import asyncio
from typing import Any

from orca_protos.http import probes
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest

from orca_worker.controller import Controller

DRAINED_SECONDS = 600.0
"""The pod's grace period, which is shorter, is the bound in practice."""
DRAINED_POLL_SECONDS = 0.1


def create_probes(controller: Controller) -> Any:
    """Returns the probe port's application."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    for name, text, read in (
        ("worker_loaded", "1 when the weights are loaded", lambda: float(controller.loaded)),
        ("worker_epoch", "The highest epoch seen", lambda: float(controller.highest_epoch)),
        ("worker_streams", "Streams that masters and neighbours hold open", lambda: float(controller.num_streams)),
    ):
        Gauge(f"orca:{name}", text, registry=registry).set_function(read)

    async def running() -> tuple[int, str]:
        return 200, "ok\n"

    async def readyz() -> tuple[int, str]:
        return (200, "ok\n") if controller.loaded else (503, "the weights are not loaded\n")

    async def drained() -> tuple[int, str]:
        deadline = asyncio.get_running_loop().time() + DRAINED_SECONDS
        while controller.num_streams and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(DRAINED_POLL_SECONDS)
        return 200, "ok\n"

    async def metrics() -> tuple[int, str]:
        return 200, generate_latest(registry).decode()

    return probes(
        {"/startupz": running, "/livez": running, "/readyz": readyz, "/drained": drained, "/metrics": metrics}
    )
