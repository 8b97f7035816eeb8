"""What an earlier master has left: opens the journal and the batches of a server, before it serves."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from orca_contract.state import JournalState
from orca_contract.topology import Topology

from orca_master.batches.service import Batches, open_batches
from orca_master.endpoint.api_keys import KeyRing
from orca_master.endpoint.batch_calls import BatchCalls
from orca_master.endpoint.config import EndpointConfig
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.restored_adapters import RestoredAdapters
from orca_master.endpoint.resumable import ResumableRequests
from orca_master.engine.adapter_calls import EngineAdapters
from orca_master.engine.config import EngineConfig
from orca_master.engine.engine_thread import EngineThread
from orca_master.errors import ConfigurationError
from orca_master.journal.config import JournalConfig, model_identity
from orca_master.journal.folder_lock import when_free
from orca_master.journal.journal import Journal
from orca_master.journal.status import JournalStatus, no_journal, status_of
from orca_master.metrics.prometheus import Metrics

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def stored_requests(
    endpoint: Endpoint,
    engine: EngineThread,
    metrics: Metrics,
    journal: JournalConfig | None,
    topology: Topology,
    config: EngineConfig,
    restarted: bool,
) -> AsyncIterator[Callable[[], JournalStatus]]:
    """Open the journal and the batches of the endpoint, which share the adapters that are loaded again.

    Yields the function that returns the journal's state. Raises ConfigurationError at the first start.
    """
    adapters = RestoredAdapters(engine_adapters(engine, endpoint.config), lambda: endpoint.generator.is_stopped)
    status: Callable[[], JournalStatus] = no_journal
    async with contextlib.AsyncExitStack() as stack:
        if journal is not None:
            opened = _resumable(endpoint, adapters, journal, topology, config.handover_timeout, restarted)
            endpoint.resumable, status = await stack.enter_async_context(opened)
            metrics.watch_journal(status)
        batches = _batches(endpoint, adapters, metrics, config.handover_timeout, restarted)
        endpoint.batches = await stack.enter_async_context(batches)
        yield status


@contextlib.asynccontextmanager
async def _resumable(
    endpoint: Endpoint,
    adapters: RestoredAdapters,
    config: JournalConfig,
    topology: Topology,
    patience: float,
    restarted: bool,
) -> AsyncIterator[tuple[ResumableRequests | None, Callable[[], JournalStatus]]]:
    """Open the journal; raise ConfigurationError at the first start, and serve without it after a restart.

    Yields the requests in the journal (None without it) and the function that returns the journal's state.
    """
    try:
        journal = await when_free(lambda stops: Journal(config.folder, model_identity(topology), stops), patience)
    except ConfigurationError as error:
        if not restarted:
            raise
        logger.error("%s: the journal is off, serving goes on", error)
        failed = JournalStatus(JournalState.OFF, str(error))
        yield None, lambda: failed
        return
    resumable = ResumableRequests(journal, endpoint.generator, config.window, adapters)
    try:
        yield resumable, lambda: status_of(journal)
    finally:
        await resumable.close()


@contextlib.asynccontextmanager
async def _batches(
    endpoint: Endpoint, adapters: RestoredAdapters, metrics: Metrics, patience: float, restarted: bool
) -> AsyncIterator[Batches | None]:
    """Open files and batches, None without a folder.

    Raises ConfigurationError at the first start; a restarted master serves without them.
    """
    config = endpoint.config.batches
    if config is None:
        yield None
        return
    async with contextlib.AsyncExitStack() as stack:
        try:
            calls = BatchCalls(endpoint, adapters, config.concurrency)
            batches = await stack.enter_async_context(open_batches(config, calls, patience))
        except ConfigurationError as error:
            if not restarted:
                raise
            logger.error("%s: batches are off, serving goes on", error)
            yield None
            return
        metrics.watch_batches(lambda: batches.num_unfinished, lambda: batches.files.room.total)
        yield batches


def engine_adapters(engine: EngineThread, config: EndpointConfig) -> EngineAdapters | None:
    """Return the adapters that clients load, None without --enable-runtime-adapters."""
    if not config.runtime_adapters:
        return None
    return EngineAdapters(engine, KeyRing(config.api_keys, config.api_key_file).has)
