"""The probe port of a worker (docs/contracts.md, section 6): read-only, independent of other workers.

/startupz and /livez: the control loop runs. /readyz: the weights are loaded, and the worker got no signal to end.
"""

from __future__ import annotations

from typing import Any

from orca_contract import routes
from orca_protos.http import probes
from orca_protos.loop_watch import LoopWatch
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest

from orca_worker.controller import Controller


def worker_registry(controller: Controller) -> CollectorRegistry:
    """Return the metrics of a worker, which are read from `controller` at each scrape."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    for name, text, read in (
        ("worker_loaded", "1 when the weights are loaded", lambda: float(controller.loaded)),
        ("worker_epoch", "The highest epoch seen", lambda: float(controller.epoch.highest)),
        ("worker_streams", "Open streams of masters and other workers", lambda: float(controller.num_streams)),
    ):
        Gauge(f"orca:{name}", text, registry=registry).set_function(read)
    return registry


def create_probes(controller: Controller) -> Any:
    """Return the probe port's application; call it on the controller's event loop."""
    registry = worker_registry(controller)
    control_loop = LoopWatch()

    async def running() -> tuple[int, str]:
        return (503, "the control loop is blocked\n") if control_loop.stuck() else (200, "ok\n")

    async def readyz() -> tuple[int, str]:
        if controller.leaving:
            return 503, "the worker is shutting down\n"
        return (200, "ok\n") if controller.loaded else (503, "the weights are not loaded\n")

    async def metrics() -> tuple[int, str]:
        return 200, generate_latest(registry).decode()

    return probes({routes.STARTUP: running, routes.LIVE: running, routes.READY: readyz, routes.METRICS: metrics})
