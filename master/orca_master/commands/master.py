"""`orca master`, and the HTTP server that `orca serve` shares with it.

Order of events: options → bind the port (a port in use is reported before anything starts) → serve HTTP,
/readyz reports loading → form the engine → ready. On a signal: refuse new connections, wait for running
requests with a timeout, shut the workers down.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from orca_contract.topology import Backend, Communication, ModelSpec, PipelineSpec, Topology
from orca_protos.command_line import OneLineParser, port
from orca_protos.http import serving, serving_apart
from orca_protos.http_limits import ADMIN_LIMITS
from orca_protos.log_lines import configure_logging
from orca_protos.tls import UNIX, WAYS_OUT, TlsError, TlsFolder
from pydantic import ValidationError

from orca_master.api_processes.pool import ApiProcesses, api_processes
from orca_master.commands.argument_types import positive
from orca_master.commands.config_file import with_config_file
from orca_master.commands.load_progress import load_progress
from orca_master.commands.options import (
    add_engine_options,
    add_model_options,
    add_server_options,
    endpoint_config,
    engine_config,
)
from orca_master.commands.ports import SIGNALS, Ports, bind
from orca_master.commands.preflight import check, text_command
from orca_master.commands.start_report import start_report
from orca_master.commands.topology_file import read_topology
from orca_master.endpoint.admin import create_admin_app, create_probes
from orca_master.endpoint.application import create_app
from orca_master.endpoint.config import EndpointConfig
from orca_master.endpoint.endpoint import Endpoint
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.engine_thread import EngineThread
from orca_master.engine.messages import EngineObserver, Observers
from orca_master.errors import ConfigurationError, EngineUnavailableError
from orca_master.metrics.iteration_log import IterationLog
from orca_master.metrics.prometheus import Metrics
from orca_master.text.chat_template import ChatTemplate
from orca_master.text.tokenizer import TextCodec

logger = logging.getLogger(__name__)

HOLD_SECONDS = 10.0
"""How long a restarted master leaves new connections without an answer while it forms its pipelines."""


async def run_server(topology: Topology, config: EngineConfig, endpoint_config: EndpointConfig, ports: Ports) -> None:
    """Serve until a signal arrives.

    Raises ConfigurationError or EngineUnavailableError if the start fails, the latter also if the engine fails.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    path = Path(topology.model.path)
    # Also with API processes: a damaged file is then reported once, before anything starts.
    codec, template = TextCodec(path), ChatTemplate(path, endpoint_config.chat_template)
    engine = make_engine(topology, config, endpoint_config)
    endpoint = Endpoint(endpoint_config, engine, codec, template)
    async with contextlib.AsyncExitStack() as stack:
        if ports.probes is not None:
            await stack.enter_async_context(serving_apart(create_probes(engine), ports.probes))
        if ports.admin is not None:
            tls = config.tls.server_context() if config.tls else None
            app = create_admin_app(engine, ports.admin_token)
            await stack.enter_async_context(serving(app, ports.admin, ADMIN_LIMITS, tls))
        front: Endpoint | ApiProcesses = endpoint
        formed = asyncio.create_task(_form(engine))
        stopped = asyncio.create_task(stop.wait())
        failed = asyncio.create_task(engine.failure())
        tasks = [formed, stopped, failed]
        try:
            if ports.restarted:  # new connections wait in the kernel's queue, instead of getting 503
                await asyncio.wait({formed, stopped}, timeout=HOLD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if endpoint_config.num_processes:
                front = await stack.enter_async_context(api_processes(engine, path, endpoint_config, ports.api))
                ended: asyncio.Future[Any] = front.ended
            else:
                await stack.enter_async_context(template)
                app = create_app(endpoint)
                ended = await stack.enter_async_context(serving(app, ports.api[0], endpoint_config.http))
            tasks.append(started := asyncio.create_task(_start(formed, front)))
            await asyncio.wait({started, ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if started.done() and not stop.is_set():
                await started
                gc.freeze()  # the objects so far are permanent, and a full collection over them takes 100 ms
                address = ports.api[0].getsockname()
                for line in start_report(engine.engine.snapshot):
                    logger.info("%s", line)
                logger.info("ready: %s on http://%s:%d", endpoint.model_name, *address[:2])
                await asyncio.wait({ended, stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
                if failed.done():
                    raise EngineUnavailableError(failed.result())
                engine.draining = True
                await front.drain()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Stop the engine before the servers, so that clients of unfinished requests receive an error.
            await engine.stop("the server ends")
            # The end of the event loop would restore the default handlers: a second signal would kill this process.
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


async def _form(engine: EngineThread) -> None:
    """Start the engine and return when its pipelines serve."""
    async with load_progress(lambda: engine.engine.snapshot.loaded_bytes, sys.stderr):
        await engine.start()


async def _start(formed: asyncio.Task[None], front: Endpoint | ApiProcesses) -> None:
    """Return when requests can be served."""
    await formed
    if isinstance(front, ApiProcesses):
        await front.joined()


def make_engine(topology: Topology, config: EngineConfig, endpoint_config: EndpointConfig) -> EngineThread:
    """Create the engine without starting it; needs a running event loop."""
    metrics = Metrics(endpoint_config.model_names[0], endpoint_config.vllm_metrics)
    observer: EngineObserver = metrics
    if config.iteration_log is not None:
        observer = Observers(metrics, IterationLog(config.iteration_log, topology.pipeline_parallel_size))
    engine = EngineThread(topology, config, observer, metrics)
    metrics.watch(engine.engine)
    return engine


def run_to_exit_code(
    program: str,
    topology: Topology,
    config: EngineConfig,
    endpoint_config: EndpointConfig,
    ports: Ports,
) -> int:
    """Run the server and return the exit code: 0, 1 if the engine failed, 2 for a configuration error."""
    # A signal during the creation of the loop would leave it half-created: defer signals until the loop handles them.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        asyncio.run(run_server(topology, config, endpoint_config, ports))
    except ConfigurationError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 2
    except EngineUnavailableError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 1
    return 0


def main(argv: list[str]) -> int:
    """Run `orca master` and return the exit code."""
    parser = OneLineParser(
        prog="orca master", description="Runs the engine master with workers that are started separately."
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--topology", type=Path, help="topology.json, see docs/contracts.md, section 1")
    source.add_argument(
        "--pipeline", action="append", metavar="HOST:PORT,…", help="workers of one pipeline, in partition order"
    )
    parser.add_argument("--model", help="with --pipeline: model directory, readable by master and workers")
    parser.add_argument("--communication-backend", choices=get_args(Backend), default="gloo", help="data plane (gloo)")
    add_model_options(parser)
    add_engine_options(parser)
    add_server_options(parser)
    _add_cluster_options(parser)
    try:
        arguments = parser.parse_args(with_config_file(argv))
        configure_logging(arguments.log_format, arguments.log_level)
        topology = _from_file(parser, arguments) if arguments.topology else _by_hand(arguments)
        tls = _tls(arguments, topology)
        names = endpoint_config(arguments, topology.model.served_name)
        check(text_command(Path(topology.model.path), names.chat_template))
        ports = _ports(arguments)
    except ConfigurationError as error:
        parser.error(str(error))
    if arguments.insecure:
        logger.warning("--insecure: calls to workers are unencrypted, and workers accept any client on their ports")
    seconds = float(arguments.recovery_timeout)
    owner = WorkerOwner.CLUSTER if seconds else WorkerOwner.ENGINE
    config = replace(engine_config(arguments), worker_owner=owner, recovery_timeout=seconds, tls=tls)
    return run_to_exit_code(parser.prog, topology, config, names, ports)


def _add_cluster_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recovery-timeout",
        type=positive,
        default=0,
        metavar="SECONDS",
        help="maximum wait, without progress, of requests for lost workers that a supervisor restarts (0: no "
        "supervisor, and the workers end with the master)",
    )
    security = parser.add_mutually_exclusive_group()
    security.add_argument(
        "--tls-dir", type=Path, metavar="DIR", help="tls.crt, tls.key and ca.crt, for workers on TCP and the admin port"
    )
    security.add_argument("--insecure", action="store_true", help="no certificates: workers on TCP accept any client")
    parser.add_argument(
        "--probe-port", type=port, help="port for /livez, /readyz, /startupz, /progressz and /metrics (none)"
    )
    parser.add_argument("--admin-port", type=port, help="port for the operator (none)")
    parser.add_argument("--admin-token-file", type=Path, metavar="FILE", help="bearer token of the admin port")


def _tls(arguments: argparse.Namespace, topology: Topology) -> TlsFolder | None:
    """Return the certificates; None with --insecure or if all workers are on Unix sockets."""
    if arguments.tls_dir is not None:
        try:
            return TlsFolder(arguments.tls_dir, "master")
        except TlsError as error:
            raise ConfigurationError(str(error)) from error
    addresses = [address for pipeline in topology.pipelines for address in pipeline.workers]
    tcp_address = next((address for address in addresses if not address.startswith(UNIX)), None)
    if tcp_address is not None and not arguments.insecure:
        raise ConfigurationError(f"worker {tcp_address}: {WAYS_OUT}")
    return None


def _ports(arguments: argparse.Namespace) -> Ports:
    token = ""
    if arguments.admin_port is not None:
        if arguments.admin_token_file is None:
            raise ConfigurationError("--admin-port needs --admin-token-file")
        try:
            token = arguments.admin_token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigurationError(f"--admin-token-file {arguments.admin_token_file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"--admin-token-file {arguments.admin_token_file}: it is not UTF-8") from error
        if not token:
            raise ConfigurationError(f"--admin-token-file {arguments.admin_token_file}: it is empty")
    host = arguments.host
    return Ports(
        bind(host, arguments.port, max(1, arguments.api_processes)),
        None if arguments.probe_port is None else bind(host, arguments.probe_port)[0],
        None if arguments.admin_port is None else bind(host, arguments.admin_port)[0],
        token,
    )


def _from_file(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Topology:
    for name in ("model", "dtype", "max_model_len", "tensor_parallel_size", "communication_backend"):
        if getattr(arguments, name) != parser.get_default(name):
            raise ConfigurationError(f"--{name.replace('_', '-')}: not allowed with --topology, whose file sets it")
    return read_topology(arguments.topology)


def _by_hand(arguments: argparse.Namespace) -> Topology:
    if arguments.model is None:
        raise ConfigurationError("--model is needed with --pipeline")
    pipelines = [pipeline.split(",") for pipeline in arguments.pipeline]
    if len({len(workers) for workers in pipelines}) != 1:
        raise ConfigurationError("--pipeline: every pipeline must have the same number of workers")
    try:
        model = ModelSpec(
            path=arguments.model,
            served_name=Path(arguments.model).name,
            dtype=arguments.dtype,
            max_model_len=arguments.max_model_len,
        )
    except ValidationError as error:  # argparse has checked the other fields
        raise ConfigurationError(f"--model: {error.errors()[0]['msg']}") from error
    return Topology(
        model=model,
        pipeline_parallel_size=len(pipelines[0]),
        tensor_parallel_size=arguments.tensor_parallel_size,
        communication=Communication(backend=arguments.communication_backend),
        pipelines=[PipelineSpec(id=f"local-{index}", workers=workers) for index, workers in enumerate(pipelines)],
    )
