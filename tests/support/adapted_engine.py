"""An engine over the pipelines a and b of fake workers, whose adapters change while it runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from orca_master.engine.config import EngineConfig, WorkerOwner

from support.fake_engine import Engine, topology

START = EngineConfig(
    worker_owner=WorkerOwner.CLUSTER, recovery_timeout=600.0, max_batch_size=4, runtime_adapters=Path("/d")
)
PIPELINES = ("a", "b")


def two() -> Engine:
    """Return the engine before its start."""
    return Engine(topology(*PIPELINES), START)


async def both_serve(made: Engine, *adapters: str) -> None:
    """Start the engine, wait until both pipelines serve, and load adapters from the paths of their names."""
    await made.engine.start()
    await made.until(lambda: len(made.engine._pipelines.serving) == len(PIPELINES))
    for name in adapters:
        await made.engine.adapters.load(name, name, "")


def submit(made: Engine, name: str, adapter: int, length: int = 4) -> None:
    """Submit a request for `length` tokens after the prompt (5, 6), with the number of an adapter (0: none)."""
    made.engine.submit(dataclasses.replace(made.submission(name, (5, 6), length), adapter=adapter))


def set_hanging(made: Engine, hangs: bool) -> None:
    """Let the iterations of the newest workers of both pipelines hang, or go on."""
    for name in PIPELINES:
        made.cluster.newest(name).hangs = hangs


def on_workers(made: Engine) -> list[dict[int, str]]:
    """Return, for each pipeline, the paths of the adapters in its newest workers, by number."""
    return [made.cluster.newest(name).adapters for name in PIPELINES]


def served(made: Engine) -> list[tuple[str, int, str]]:
    """Return the name, number and owner of each adapter that the engine serves."""
    return [tuple(entry) for entry in made.engine.snapshot.adapters]
