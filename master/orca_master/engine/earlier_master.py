"""`describe_free`: a master leaves the workers to an earlier master until that has finished its requests.

When the pod of a master is deleted, Kubernetes starts the next one at once, while the old one drains. A master that
has ended, or that has lost its connections, has no streams on the workers, so nothing waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from orca_protos import engine_pb2 as pb

from orca_master.engine.config import EngineConfig
from orca_master.engine.faults import all_workers
from orca_master.engine.worker_connection import WorkerConnection

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5


async def describe_free(workers: Sequence[WorkerConnection], config: EngineConfig) -> list[pb.Description]:
    """Wait until no worker serves another master, at most `config.handover_timeout`; return the descriptions.

    After that time the workers are taken: the other master hangs, or drains for longer than this one would. Raises
    what WorkerConnection.describe raises.
    """
    clock = asyncio.get_running_loop().time
    deadline = None
    while True:
        described = await all_workers(worker.describe(config.connect_timeout) for worker in workers)
        masters = [description.serving_master for description in described]
        others = [
            worker.address
            for worker, master in zip(workers, masters, strict=True)
            if master not in ("", config.master_id)
        ]
        if not others:
            return described
        if deadline is None:
            deadline = clock() + config.handover_timeout
            logger.info(
                "worker %s serves another master, which may be draining: waiting for its end, at most %.0f s",
                others[0],
                config.handover_timeout,
            )
        elif clock() >= deadline:
            logger.warning(
                "worker %s still serves another master after %.0f s and is taken from it",
                others[0],
                config.handover_timeout,
            )
            return described
        await asyncio.sleep(POLL_SECONDS)
