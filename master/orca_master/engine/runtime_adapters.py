"""`RuntimeAdapters`: loads adapters into the workers of all pipelines while they serve, and removes them.

Every change names the adapters that stay, so that a pipeline loses whatever an earlier change has left behind. One
change is made at a time. A pipeline that is formed gets the present adapters before it serves (`bring`), those that are
being loaded, too: so the pipelines that serve always have all that requests may use.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from orca_contract.topology import MAX_PATH_LENGTH, ModelSpec
from orca_protos import engine_pb2 as pb

from orca_master.engine.adapter_registry import OFF, PATH, AdapterRegistry, RuntimeAdapter, ServedAdapter
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.supervisor import PipelineSupervisor
from orca_master.engine.workers import PipelineWorkers
from orca_master.errors import ConfigurationError, EngineUnavailableError, ModelNotFoundError, RequestError

logger = logging.getLogger(__name__)

TURN_SECONDS = 300.0
"""How long a change waits for those before it."""
MAX_LOSSES = 2
"""Losses of workers in a row, while the same adapter is loaded again, after which it is unloaded or refused."""


class _LoadLossError(EngineUnavailableError):
    """Workers were lost while they loaded an adapter."""


class AdapterUsers(Protocol):
    """The unfinished requests."""

    def adapters(self) -> set[int]:
        """Return the numbers of the adapters that they use."""

    def fail_adapter(self, number: int, reason: str) -> None:
        """Fail the requests that use an adapter."""


class RuntimeAdapters:
    """The adapters of the pipelines that are `serving`, beside those of `model`.

    `folder`: the folder below which adapters may be loaded; None: none is ever loaded. Call `watch` first.
    """

    def __init__(self, model: ModelSpec, serving: Mapping[str, PipelineSupervisor], folder: Path | None) -> None:
        names = [adapter.name for adapter in model.adapters]
        self.registry = AdapterRegistry(len(names), (model.served_name, *names))
        self._serving = serving
        self._folder = folder
        self._turn = asyncio.Lock()
        self._removing: set[asyncio.Task[None]] = set()
        self._losses: dict[int, int] = {}
        """By number of an adapter: workers in a row that were lost while a formation loaded it."""
        self._lost_restores: Counter[str] = Counter()
        """By digest: losses of workers in a row while an adapter was restored."""
        self._furthest = 0
        """Most adapters that a formation has brought since one was complete, or since `forget_progress`."""

    def watch(self, users: AdapterUsers, on_change: Callable[[], None], on_progress: Callable[[], None]) -> None:
        """Set who uses the adapters, and what to call when those that requests may use have changed, or on progress."""
        self._users, self._on_change, self._on_progress = users, on_change, on_progress

    def forget_progress(self) -> None:
        """Let formations report their progress anew."""
        self._furthest = 0

    def check_new(self, number: int) -> None:
        """Raise ModelNotFoundError if no new request may use an adapter: it has left since the request was checked."""
        if not self.registry.accepts(number):
            raise ModelNotFoundError("the adapter is not loaded any more")

    def check_held(self, number: int) -> None:
        """Raise RequestError if workers have no such adapter."""
        if not self.registry.holds(number):
            raise RequestError(f"model: the workers have no adapter {number}", "model")

    async def load(self, name: str, path: str, owner: str) -> None:
        """Load an adapter for one owner; return when requests may use it.

        Raises RequestError for a name, path or files that are refused, EngineUnavailableError if no pipeline serves.
        """
        folder = self._folder_of(path)
        await self._bring_new(self.registry.begin(name, owner, folder))
        logger.info("adapter %r is loaded from %s", name, folder)
        self._on_change()

    async def restore(self, name: str, path: str, owner: str, digest: str) -> int:
        """Load an adapter again for requests of an earlier master, until `release`; return its number.

        Its name stays free: its owner may have unloaded it, or loaded other files under it. Raises as `load`, and
        RequestError if the files have another digest, or workers were lost over it MAX_LOSSES times in a row.
        """
        folder = self._folder_of(path)
        adapter = self.registry.begin_restored(name, owner, folder)
        try:
            await self._bring_new(adapter, digest)
        except _LoadLossError as error:
            self._lost_restores[digest] += 1
            if self._lost_restores[digest] >= MAX_LOSSES:
                raise RequestError(f"workers were lost {MAX_LOSSES} times while they loaded it") from error
            raise
        self._lost_restores.pop(digest, None)
        logger.info("adapter %r is loaded again from %s for requests of an earlier master", name, folder)
        return adapter.number

    def release(self, number: int) -> None:
        """Let an adapter leave that was restored: the requests that needed it have ended."""
        self.registry.release(number)
        self._on_change()

    async def unload(self, name: str, owner: str) -> None:
        """Refuse new requests for an adapter of this owner; it is removed when the last accepted one has ended.

        Raises RequestError if this owner has no such adapter.
        """
        if self._folder is None:
            raise RequestError(OFF)
        self.registry.leave(name, owner)
        logger.info("adapter %r is unloaded", name)
        self._on_change()

    def unload_all_of(self, owners: frozenset[str]) -> None:
        """Unload the adapters of owners that are ready, as `unload`; those that nobody uses are gone at once."""
        for adapter in self.registry.ready:
            if adapter.owner in owners:
                self.registry.leave(adapter.name, adapter.owner)
                logger.info("adapter %r is unloaded: the API key that loaded it is not valid any more", adapter.name)
        if owners:
            self._on_change()  # which settles

    def settle(self) -> tuple[ServedAdapter, ...]:
        """Remove the adapters that leave and that no unfinished request uses; return those that requests may use.

        Call it whenever requests may have ended.
        """
        if self.registry.leaving and (unused := self.registry.leaving - self._users.adapters()):
            for number in unused:
                self.registry.remove(number)
            self._remove_soon()
        return self.registry.ready

    async def bring(self, workers: PipelineWorkers) -> None:
        """Give workers that were formed the present adapters, and no others.

        Raises WorkerLostError, or ConfigurationError if they refuse the removal of others.

        An adapter that they refuse is unloaded everywhere, and its requests end with an error: its files have changed
        or are gone, so that no pipeline could compute the same again. So is one over which workers are lost MAX_LOSSES
        times in a row, without a cause from outside: no pipeline might be formed again.
        """
        if self._folder is None:
            return
        await workers.change_adapters(self._numbers, None)
        brought: set[tuple[int, str]] = set()
        while brought != (present := {(each.number, each.digest) for each in self.registry.present}):
            brought &= present  # it may have changed during the last call; a digest is known when an adapter is ready
            missing = next((each for each in self.registry.present if (each.number, each.digest) not in brought), None)
            if missing is None:
                await workers.change_adapters(self._numbers, None)
                continue
            brought.add((missing.number, missing.digest))
            try:
                await workers.change_adapters(self._numbers, _message(missing))
            except ConfigurationError as error:
                self._lose(missing, str(error))
            except WorkerLostError as error:
                if not error.outside and self._count_loss(missing.number) >= MAX_LOSSES:
                    self._lose(missing, str(error))
                raise
            else:
                self._losses.pop(missing.number, None)
            if len(brought) > self._furthest:
                self._furthest = len(brought)
                self._on_progress()
        self.forget_progress()

    async def _bring_new(self, adapter: RuntimeAdapter, expected: str = "") -> None:
        """Load an adapter with the `expected` digest, "" for any; raise, and remove it from all pipelines."""
        try:
            if not self._serving:
                raise EngineUnavailableError("no pipeline serves: load the adapter later")
            async with self._turns():
                digest = await self._load(adapter)
            if expected not in ("", digest):
                raise RequestError(f"{PATH}: the files have changed", PATH)
            self.registry.finish(adapter.number, digest)
        except BaseException:
            if self.registry.remove(adapter.number):  # else a removal from the pipelines has been made or begun
                self._remove_soon()
            raise

    @property
    def _numbers(self) -> list[int]:
        return [adapter.number for adapter in self.registry.present]

    def _folder_of(self, path: str) -> str:
        """Return the path on the workers, which follow its links themselves; raise RequestError."""
        if self._folder is None:
            raise RequestError(OFF)
        if len(path) > MAX_PATH_LENGTH:
            raise RequestError(f"{PATH}: a path of at most {MAX_PATH_LENGTH} characters is expected", PATH)
        home = os.path.abspath(self._folder)
        folder = os.path.normpath(os.path.join(home, path))
        if "\0" in path or not folder.startswith(os.path.join(home, "")):
            raise RequestError(f"{PATH}: a path below the folder of --enable-runtime-adapters is expected", PATH)
        return folder

    @contextlib.asynccontextmanager
    async def _turns(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turn.acquire()
        except TimeoutError as error:
            raise EngineUnavailableError(f"other adapters have been loaded for {TURN_SECONDS:.0f} s") from error
        try:
            yield
        finally:
            self._turn.release()

    async def _load(self, adapter: RuntimeAdapter) -> str:
        """Load an adapter into all pipelines that serve and return its digest; raise, and remove it from all."""
        results: list[str | BaseException] = []
        asked: list[PipelineWorkers] = []
        while new := [each for each in self._serving.values() if each.workers not in asked]:  # some may come meanwhile
            asked += [each.workers for each in new]
            results += await self._change(new, _message(adapter))
        digests = {result for result in results if isinstance(result, str)}
        refusals = [result for result in results if isinstance(result, ConfigurationError)]
        if len(digests) == 1 and not refusals:
            return digests.pop()
        self.registry.remove(adapter.number)
        await self._change(list(self._serving.values()), None)
        if refusals:
            raise RequestError(f"{PATH}: {refusals[0]}", PATH)
        if digests:
            raise RequestError(f"{PATH}: the workers of different pipelines have different files there", PATH)
        raise _LoadLossError("workers were lost while they loaded the adapter: load it again")

    def _count_loss(self, number: int) -> int:
        """Return the losses of workers in a row over an adapter, with this one."""
        present = {entry: count for entry, count in self._losses.items() if entry in self._numbers}
        self._losses = present | {number: present.get(number, 0) + 1}
        return self._losses[number]

    def _remove_soon(self) -> None:
        """Remove from the pipelines that serve what the registry does not have any more."""
        task = asyncio.get_running_loop().create_task(self._remove())
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)

    async def _remove(self) -> None:
        with contextlib.suppress(EngineUnavailableError):  # the next change removes them
            async with self._turns():
                await self._change(list(self._serving.values()), None)

    async def _change(
        self, supervisors: Sequence[PipelineSupervisor], loaded: pb.RuntimeAdapter | None
    ) -> list[str | BaseException]:
        """Change the adapters of pipelines that serve; return digests, ConfigurationErrors and WorkerLostErrors."""
        calls = (self._change_one(each, loaded) for each in supervisors)
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, ConfigurationError | WorkerLostError):
                raise result
            if loaded is None and isinstance(result, ConfigurationError):
                logger.warning("adapters are not removed before the next change: %s", result)
        return results

    async def _change_one(self, supervisor: PipelineSupervisor, loaded: pb.RuntimeAdapter | None) -> str:
        workers = supervisor.workers
        try:
            return await supervisor.change_adapters(self._numbers, loaded)
        except WorkerLostError as error:
            if supervisor.workers is workers:
                supervisor.give_up(error)  # its next formation has the present adapters
            raise

    def _lose(self, adapter: RuntimeAdapter, reason: str) -> None:
        message = f"the adapter {adapter.name!r} could not be loaded again after a loss of workers: {reason}"
        logger.error("%s", message)
        self.registry.remove(adapter.number)
        self._users.fail_adapter(adapter.number, message)
        self._remove_soon()
        self._on_change()


def _message(adapter: RuntimeAdapter) -> pb.RuntimeAdapter:
    return pb.RuntimeAdapter(number=adapter.number, name=adapter.name, path=adapter.folder, digest=adapter.digest)
