"""Serves one worker: its gRPC service, probes and heartbeat, until `Shutdown` or a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence

import grpc.aio
from orca_protos.command_line import UNIX, one_line
from orca_protos.engine_pb2_grpc import add_WorkerServicer_to_server
from orca_protos.heartbeat import beat
from orca_protos.listening import ALL_ADDRESSES, listen
from orca_protos.tls import TlsFolder
from orca_protos.wire import SERVER_OPTIONS

from orca_worker.controller import Controller
from orca_worker.door import Door
from orca_worker.rank_start import RANK_COMMAND, RankStart, StartedRank

logger = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 1.0


async def run(
    address: str,
    probe_port: int | None = None,
    drain_timeout: float = 0,
    rank_command: Sequence[str] = RANK_COMMAND,
    tls: TlsFolder | None = None,
    keeps_spare: bool = False,
    heartbeat: int | None = None,
    early_ranks: Sequence[tuple[RankStart, StartedRank]] = (),
) -> int:
    """Serve until `Shutdown` or a signal; return the exit code. Without `tls` any caller may control the worker.

    `heartbeat`: file descriptor for signs of life (heartbeat.py); the worker ends with its reader. `early_ranks`: ranks
    that have been started before.
    """
    # A master that uses a Unix socket, like `orca serve`, knows all workers of this machine. A worker that listens on
    # TCP, like every pod, may share its cores with workers of other masters.
    controller = Controller(rank_command, address.startswith(UNIX), tls, keeps_spare)
    server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=[Door(tls)] if tls else [])
    add_WorkerServicer_to_server(controller, server)  # type: ignore[no-untyped-call]
    try:
        bound = server.add_secure_port(address, tls.server_credentials()) if tls else server.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if bound == 0:
        where = one_line(address)
        print(f"orca worker: error: --listen {where}: the address is in use or not on this machine", file=sys.stderr)
        return 2
    loop, leaving = asyncio.get_running_loop(), []
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: leaving.append(loop.create_task(controller.leave(drain_timeout))))
    async with contextlib.AsyncExitStack() as stack:
        await controller.adopt_early(early_ranks)
        if probe_port is not None:
            from orca_protos.http import serving_apart  # imports uvicorn

            from orca_worker.probes import create_probes

            try:
                listener = listen(ALL_ADDRESSES, probe_port)
                await stack.enter_async_context(serving_apart(create_probes(controller), listener))
            except OSError as error:  # the port is in use, or a limit of threads is reached
                print(f"orca worker: error: --probe-port {probe_port}: {error.strerror}", file=sys.stderr)
                await controller.close()
                return 2
        await server.start()
        logger.info("worker listens on %s", address)
        if tls is None and not address.startswith(UNIX):
            logger.warning("--insecure: all who can reach %s control this worker; traffic is not encrypted", address)
        if heartbeat is not None:
            beating = asyncio.create_task(beat(heartbeat))
            beating.add_done_callback(lambda _: controller.stopped.set())  # its reader has ended
            stack.callback(beating.cancel)
        await controller.stopped.wait()
        await controller.close()
    await server.stop(STOP_GRACE_SECONDS)
    return 0
