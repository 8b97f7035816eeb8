"""An API process: runs the endpoint (HTTP and text processing) for the engine of a master.

    python -m orca_master.api_processes.api_process --engine SOCKET --listener FD --heartbeat FD

Started by the master (pool.py). Ends on SIGTERM after its running requests, and when the link to the master
closes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
from pathlib import Path

from orca_protos.heartbeat import beat
from orca_protos.http import serving
from orca_protos.log_lines import configure_logging

from orca_master.api_processes.remote_adapters import RemoteAdapters
from orca_master.api_processes.remote_engine import connect
from orca_master.api_processes.remote_store import RemoteStore
from orca_master.endpoint.application import create_app
from orca_master.endpoint.endpoint import Endpoint
from orca_master.errors import ConfigurationError, EngineUnavailableError
from orca_master.garbage import freeze_and_bound
from orca_master.text.chat_template import ChatTemplate
from orca_master.text.tokenizer import TextCodec

LAST_SECONDS = 5.0
"""Added to the drain timeout, so that the master's error reaches the unfinished requests."""


async def run(engine_path: Path, listener: socket.socket, heartbeat: int) -> None:
    """Serve until SIGTERM or until the link closes; raise EngineUnavailableError if no master answers."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    engine, hello = await connect(engine_path)
    config, path = hello.config, hello.model_path
    configure_logging(config.log_format, config.log_level)
    endpoint = Endpoint(
        config,
        engine,
        TextCodec(path),
        ChatTemplate(path, config.chat_template),
        store=RemoteStore(engine),
        adapter_loader=RemoteAdapters(engine) if config.runtime_adapters else None,
    )
    beating = asyncio.create_task(beat(heartbeat))  # the model's files have been read, which may have taken long
    listening = asyncio.create_task(engine.listen())
    stopped = asyncio.create_task(stop.wait())
    freeze_and_bound()
    try:
        async with endpoint.template, serving(create_app(endpoint), listener, config.http) as server:
            await asyncio.wait({listening, server, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not listening.done():  # else all requests have failed, and new connections are for the next master
                await endpoint.drain(LAST_SECONDS)
    finally:
        for task in (listening, stopped, beating):
            task.cancel()
        await asyncio.gather(listening, stopped, beating, return_exceptions=True)


def main(argv: list[str]) -> int:
    """Return exit code 0, or 1 if no master answers or the process cannot start."""
    parser = argparse.ArgumentParser(
        prog="orca_master.api_processes.api_process", description="Runs an API process of a master."
    )
    parser.add_argument("--engine", type=Path, required=True, help="the master's socket")
    parser.add_argument("--listener", type=int, required=True, help="file descriptor of a listening socket")
    parser.add_argument("--heartbeat", type=int, required=True, help="pipe that gets signs of life")
    arguments = parser.parse_args(argv)
    configure_logging()
    with contextlib.closing(socket.socket(fileno=arguments.listener)) as listener:
        try:
            asyncio.run(run(arguments.engine, listener, arguments.heartbeat))
        except (ConfigurationError, EngineUnavailableError) as error:
            print(f"orca API process: error: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
