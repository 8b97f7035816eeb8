"""`orca worker`: listens on an address and executes the commands of a master.

The command line has only addresses and TLS files (docs/contracts.md, section 1): model, partition and the addresses of
other workers come from the master. With `--start-ranks` the worker starts ranks before a master comes (early_ranks.py).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from orca_protos.command_line import UNIX, WAYS_OUT, OneLineParser, port
from orca_protos.log_lines import add_log_options, configure_logging
from orca_protos.uncollected import uncollected

from orca_worker.early_ranks import rank_places, start_ranks


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
        type=rank_places,
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
    socket = arguments.listen.removeprefix(UNIX)
    if on_unix and not (socket and Path(socket).absolute().parent.is_dir()):
        parser.error(f"--listen {arguments.listen!r}: unix: and a path in a folder that exists are expected")
    if not on_unix and not (host and number.isdecimal() and 0 < int(number) < 65536):
        parser.error(f"--listen {arguments.listen!r}: host:port or unix:PATH is expected")
    if arguments.heartbeat is not None:
        try:
            os.fstat(arguments.heartbeat)
        except (OSError, OverflowError):
            parser.error(f"--heartbeat {arguments.heartbeat}: an open file descriptor is expected")
    configure_logging(arguments.log_format, arguments.log_level)
    if not on_unix and not arguments.tls_dir and not arguments.insecure:
        parser.error(f"--listen {arguments.listen}: {WAYS_OUT}")
    # Pinned like the ranks of a Load (serving.py).
    early = start_ranks(arguments.start_ranks.starts({}, may_pin=on_unix)) if arguments.start_ranks else []
    with uncollected():  # gRPC and asyncio, while the ranks import torch
        import asyncio

        from orca_protos.tls import TlsError, TlsFolder

        from orca_worker.serving import run
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
            early_ranks=early,
        )
    )
