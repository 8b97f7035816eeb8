"""The server of a master, shared by `orca master` and `orca serve`, which have bound its ports.

Order of events: serve probes → open the journal, when an earlier master has left it → serve HTTP, /readyz reports
loading → form the engine → resume journalled requests → ready. On a signal: refuse new connections, wait for running
requests with a timeout, abandon the lines of batches, shut the workers down, close the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from orca_contract.topology import Topology
from orca_protos.command_line import one_line
from orca_protos.heartbeat import beat
from orca_protos.http import serving, serving_apart
from orca_protos.http_limits import ADMIN_LIMITS

from orca_master.api_processes.link_server import EngineServer
from orca_master.api_processes.pool import ApiProcesses, api_processes
from orca_master.commands.load_progress import load_progress
from orca_master.commands.ports import SIGNALS, Ports, stop_on_signals
from orca_master.commands.start_report import start_report
from orca_master.commands.stored_requests import engine_adapters, stored_requests
from orca_master.commands.trace_options import traces_protocol
from orca_master.endpoint.admin import create_admin_app, create_probes
from orca_master.endpoint.application import create_app
from orca_master.endpoint.config import EndpointConfig
from orca_master.endpoint.endpoint import Endpoint
from orca_master.engine.config import EngineConfig
from orca_master.engine.engine_thread import EngineThread
from orca_master.engine.messages import EngineObserver, Observers
from orca_master.engine.request_stream import RequestTraces
from orca_master.errors import ConfigurationError, EngineUnavailableError
from orca_master.garbage import freeze_and_bound
from orca_master.journal.config import JournalConfig
from orca_master.journal.status import JournalStatus
from orca_master.metrics.iteration_log import IterationLog
from orca_master.metrics.prometheus import Metrics
from orca_master.text.chat_template import ChatTemplate
from orca_master.text.tokenizer import TextCodec

logger = logging.getLogger(__name__)

HOLD_SECONDS = 10.0
"""How long a restarted master leaves new connections without an answer while it forms its pipelines."""


async def run_server(
    topology: Topology,
    config: EngineConfig,
    endpoint_config: EndpointConfig,
    ports: Ports,
    journal: JournalConfig | None = None,
) -> None:
    """Serve until a signal arrives.

    Raises ConfigurationError or EngineUnavailableError if the start fails, the latter also if the engine, the HTTP
    server or the API processes fail.
    """
    stop = stop_on_signals()
    path = Path(topology.model.path)
    # Also with API processes: a damaged file is then reported once, before anything starts.
    codec, template = TextCodec(path), ChatTemplate(path, endpoint_config.chat_template)
    metrics = Metrics(endpoint_config.model_names[0], endpoint_config.vllm_metrics)
    engine = make_engine(topology, config, metrics, ports.restarted)
    adapters = engine_adapters(engine, endpoint_config)
    endpoint = Endpoint(endpoint_config, engine, codec, template, adapter_loader=adapters)
    async with contextlib.AsyncExitStack() as stack:
        server = EngineServer(engine, path, endpoint_config, adapters)
        await _show_life(stack, engine, ports, lambda: server.is_joined or not endpoint_config.num_processes)
        stopped = asyncio.create_task(stop.wait())
        stored = stored_requests(endpoint, engine, metrics, journal, topology, config, ports.restarted)
        opened = asyncio.create_task(stack.enter_async_context(stored))
        tasks: list[asyncio.Task[Any]] = [stopped, opened]
        try:
            await asyncio.wait({opened, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not opened.done():
                return  # a signal ends the wait for an earlier master
            await stack.enter_async_context(_admin_port(engine, ports, config, opened.result()))
            tasks.append(formed := asyncio.create_task(_form(engine)))
            tasks.append(failed := asyncio.create_task(engine.failure()))
            if ports.restarted:  # new connections wait in the kernel's queue, instead of getting 503
                await asyncio.wait({formed, stopped}, timeout=HOLD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            front: Endpoint | ApiProcesses = endpoint
            if endpoint_config.num_processes:
                front = await stack.enter_async_context(api_processes(engine, server, ports.api))
                ended: asyncio.Future[Any] = front.ended
            else:
                await stack.enter_async_context(template)
                served = serving(create_app(endpoint), ports.api[0], endpoint_config.http)
                ended = await stack.enter_async_context(served)
            tasks.append(started := asyncio.create_task(_start(formed, front)))
            await asyncio.wait({started, ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if started.done() and not stop.is_set():
                await started
                _begin_service(endpoint, engine, ports, config)
                await _serve(engine, front, ended, stopped, failed)
            elif not stop.is_set():
                raise _fault(front, ended)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await endpoint.abandon_batches()  # before the engine fails the requests of their lines
            # Stop the engine before the servers, so that clients of unfinished requests receive an error.
            await engine.stop("the server ends")
            endpoint.interrupt()
            # The end of the event loop would restore the default handlers: a second signal would kill this process.
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


async def _show_life(
    stack: contextlib.AsyncExitStack, engine: EngineThread, ports: Ports, is_joined: Callable[[], bool]
) -> None:
    """Send heartbeats to the parent process and serve the probe port, until `stack` ends."""
    if ports.parent is not None:
        stack.callback(asyncio.create_task(beat(ports.parent.heartbeat)).cancel)
    if ports.probes is not None:
        try:
            await stack.enter_async_context(serving_apart(create_probes(engine, is_joined), ports.probes))
        except OSError as error:
            raise EngineUnavailableError(f"the thread of the probes does not start: {error.strerror}") from error


@contextlib.asynccontextmanager
async def _admin_port(
    engine: EngineThread, ports: Ports, config: EngineConfig, journal: Callable[[], JournalStatus]
) -> AsyncIterator[None]:
    """Serve the admin port, if the master has one."""
    if ports.admin is None or ports.admin_token is None:
        yield
        return
    tls = config.tls.server_context() if config.tls else None
    async with serving(create_admin_app(engine, ports.admin_token, journal), ports.admin, ADMIN_LIMITS, tls):
        yield


async def _form(engine: EngineThread) -> None:
    """Start the engine and return when its pipelines serve."""
    async with load_progress(lambda: engine.engine.snapshot.loaded_bytes, sys.stderr):
        await engine.start()


async def _start(formed: asyncio.Task[None], front: Endpoint | ApiProcesses) -> None:
    """Return when requests can be served."""
    await formed
    if isinstance(front, ApiProcesses):
        await front.joined()


async def _serve(
    engine: EngineThread,
    front: Endpoint | ApiProcesses,
    ended: asyncio.Future[Any],
    stopped: asyncio.Task[Any],
    failed: asyncio.Task[str],
) -> None:
    """Serve until a signal arrives or a part fails; then drain, unless the engine has failed. Raise the failure."""
    await asyncio.wait({ended, stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        raise EngineUnavailableError(failed.result())
    fault = None if stopped.done() else _fault(front, ended)
    engine.begin_drain()
    await front.drain()
    if fault is not None:
        raise fault


def _fault(front: Endpoint | ApiProcesses, ended: asyncio.Future[Any]) -> EngineUnavailableError:
    """Return the error of an HTTP server, or of API processes, that ended without a signal."""
    part = "the API processes" if isinstance(front, ApiProcesses) else "the HTTP server"
    cause = ended.exception()
    return EngineUnavailableError(f"{part} ended unexpectedly" + (f": {cause!r}" if cause else ""))


def _begin_service(endpoint: Endpoint, engine: EngineThread, ports: Ports, config: EngineConfig) -> None:
    """Resume the journalled requests and the batches, and log that the server is ready."""
    if (resumable := endpoint.resumable) and (num_resumed := resumable.resume(lambda: engine.engine.snapshot.weights)):
        logger.info("--journal: %d requests of an earlier master are resumed", num_resumed)
    if endpoint.batches is not None:
        if endpoint.batches.num_unfinished:
            logger.info("--batch-directory: %d batches are continued", endpoint.batches.num_unfinished)
        endpoint.batches.start()
    freeze_and_bound()
    host, port = ports.api[0].getsockname()[:2]
    for line in start_report(engine.engine.snapshot, config.speculative_tokens):
        logger.info("%s", line)
    logger.info("ready: %s on http://%s:%d", endpoint.model_name, f"[{host}]" if ":" in host else host, port)
    if ports.parent is not None:
        ports.parent.note_ready()


def make_engine(topology: Topology, config: EngineConfig, metrics: Metrics, restarted: bool = False) -> EngineThread:
    """Create the engine without starting it; needs a running event loop. `restarted`: see Ports."""
    observer: EngineObserver = metrics
    if config.iteration_log is not None:
        observer = Observers(metrics, IterationLog(config.iteration_log, topology.pipeline_parallel_size, restarted))
    traces: RequestTraces | None = None
    if (endpoint := config.traces_endpoint) is not None:
        # OpenTelemetry's SDK is an extra.
        from orca_master.metrics.request_traces import traces_to

        traces = traces_to(endpoint, traces_protocol(endpoint))
    engine = EngineThread(topology, config, observer, metrics, traces)
    metrics.watch(engine.engine)
    return engine


def run_to_exit_code(
    program: str,
    topology: Topology,
    config: EngineConfig,
    endpoint_config: EndpointConfig,
    ports: Ports,
    journal: JournalConfig | None = None,
) -> int:
    """Run the server and return the exit code: 0, 1 if a part failed, 2 for a configuration error."""
    # A signal during the creation of the loop would leave it half-created: defer signals until the loop handles them.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        asyncio.run(run_server(topology, config, endpoint_config, ports, journal))
    except (ConfigurationError, EngineUnavailableError) as error:
        print(f"{program}: error: {one_line(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
    return 0
