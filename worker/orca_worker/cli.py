"""`orca worker`: listens on an address and executes the commands of a master.

The command line has only addresses and TLS files (docs/contracts.md, section 1): model, partition and the addresses of
other workers come from the master. With `--start-ranks` the worker starts ranks before a master comes (early_ranks.py).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc.aio
from orca_protos.command_line import OneLineParser, one_line, port
from orca_protos.engine_pb2_grpc import add_WorkerServicer_to_server
from orca_protos.heartbeat import beat
from orca_protos.listening import ALL_ADDRESSES, listen
from orca_protos.log_lines import add_log_options, configure_logging
from orca_protos.tls import UNIX, WAYS_OUT, TlsError, TlsFolder
from orca_protos.wire import SERVER_OPTIONS

from orca_worker.controller import Controller
from orca_worker.door import Door
from orca_worker.early_ranks import EarlyRanks
from orca_worker.rank_process import RANK_COMMAND

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
    early_ranks: EarlyRanks | None = None,
) -> int:
    """Serve until `Shutdown` or a signal; return the exit code. Without `tls` any caller may control the worker.

    `heartbeat`: file descriptor for signs of life (heartbeat.py); the worker ends with its reader.
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
        if early_ranks is not None:
            await controller.start_early(early_ranks)
        if probe_port is not None:
            from orca_protos.http import serving_apart  # imports uvicorn

            from orca_worker.probes import create_probes

            try:
                listener = listen(ALL_ADDRESSES, probe_port)
            except OSError as error:
                print(f"orca worker: error: --probe-port {probe_port}: {error.strerror}", file=sys.stderr)
                await controller.close()
                return 2
            await stack.enter_async_context(serving_apart(create_probes(controller), listener))
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


def _whole(text: str) -> int:
    """Convert a whole number of at least 0 (argparse type)."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def main(argv: list[str]) -> int:
    """Run `orca worker`."""
    parser = OneLineParser(prog="orca worker", description="Runs one worker, which waits for a master.")
    parser.add_argument("--listen", required=True, metavar="ADDR", help="address for gRPC: host:port or unix:PATH")
    parser.add_argument(
        "--probe-port", type=port, metavar="PORT", help="port for /livez, /readyz, /startupz and /metrics (none)"
    )
    parser.add_argument(
        "--drain-timeout",
        type=_whole,
        default=0,
        metavar="SECONDS",
        help="longest wait after SIGTERM for the master to disconnect (0)",
    )
    parser.add_argument(
        "--no-spare-rank",
        action="store_true",
        help="keep no idle process that replaces a failed rank at once (one is kept if 1 GiB of memory is free)",
    )
    parser.add_argument(
        "--heartbeat",
        type=_whole,
        metavar="FD",
        help="pipe that gets a byte per second as a sign of life; the worker ends with its reader (none)",
    )
    parser.add_argument(
        "--start-ranks",
        type=EarlyRanks.parse,
        metavar="COUNT:FIRST:TOTAL:DEVICE[:BACKEND]",
        help="start rank processes before a master comes, so that they import torch meanwhile: COUNT ranks, those from "
        "FIRST on of the TOTAL on this machine (none)",
    )
    security = parser.add_mutually_exclusive_group()
    security.add_argument(
        "--tls-dir", type=Path, metavar="DIR", help="folder with tls.crt, tls.key and ca.crt, for host:port"
    )
    security.add_argument(
        "--insecure", action="store_true", help="host:port without TLS: all who can reach the port control the worker"
    )
    add_log_options(parser)
    arguments = parser.parse_args(argv)
    on_unix = arguments.listen.startswith(UNIX)
    host, _, number = arguments.listen.rpartition(":")
    if on_unix and arguments.tls_dir:
        parser.error(f"--tls-dir {arguments.tls_dir}: --listen {arguments.listen} is a Unix socket, which has no TLS")
    if not on_unix and not (host and number.isdecimal() and 0 < int(number) < 65536):
        parser.error(f"--listen {arguments.listen!r}: host:port or unix:PATH is expected")
    if arguments.heartbeat is not None:
        try:
            os.fstat(arguments.heartbeat)
        except (OSError, OverflowError):
            parser.error(f"--heartbeat {arguments.heartbeat}: an open file descriptor is expected")
    configure_logging(arguments.log_format, arguments.log_level)
    tls = None
    if not on_unix:
        if not arguments.tls_dir and not arguments.insecure:
            parser.error(f"--listen {arguments.listen}: {WAYS_OUT}")
        try:
            tls = TlsFolder(arguments.tls_dir, "worker") if arguments.tls_dir else None
        except TlsError as error:
            parser.error(str(error))
    return asyncio.run(
        run(
            arguments.listen,
            arguments.probe_port,
            arguments.drain_timeout,
            tls=tls,
            keeps_spare=not arguments.no_spare_rank,
            heartbeat=arguments.heartbeat,
            early_ranks=arguments.start_ranks,
        )
    )
