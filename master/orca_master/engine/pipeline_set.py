"""`PipelineSet`: the supervisors of a topology's pipelines, and which of the pipelines serve."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.state import PipelineReport
from orca_contract.topology import PipelineSpec, Topology
from orca_protos import engine_pb2 as pb
from orca_protos.file_digest import tokenizer_digest

from orca_master.engine.config import EngineConfig
from orca_master.engine.departures import Departures
from orca_master.engine.listener import PipelineListener
from orca_master.engine.messages import Submission
from orca_master.engine.request_limits import check_fits, check_values
from orca_master.engine.runtime_adapters import RuntimeAdapters
from orca_master.engine.same_weights import changes, difference, different_weights, replaced, with_known
from orca_master.engine.snapshot import FormedPipeline, LoadedBytes
from orca_master.engine.supervisor import NO_PROGRESS, PipelineSupervisor
from orca_master.engine.workers import MakeWorkers, PipelineWorkers, formed_pipeline
from orca_master.errors import ConfigurationError
from orca_master.scheduling.request import Request

logger = logging.getLogger(__name__)

NO_PIPELINES = "scaled to zero: no pipeline serves"
"""Why an engine does not serve whose topology was empty; also the error of requests that have waited in vain."""


class RequestsUnfinishedError(Exception):
    """A change of the topology that is possible only without unfinished requests (HTTP 423 at the admin port)."""


class PipelineSet:
    """One supervisor per pipeline of `topology`. `serving`: the pipelines that serve, in the order of their start.

    `formed`: the pipeline that began to serve last, None before the first. `facts`: the model, from the workers; its
    numbers are 0 before the engine serves. `weights`: the identities of its weights, of the last workers that reported
    them. `adapters`: see RuntimeAdapters. `adapter_folder`: its `folder`.
    """

    def __init__(
        self,
        topology: Topology,
        listener: PipelineListener,
        make_workers: MakeWorkers,
        adapter_folder: Path | None = None,
    ) -> None:
        self.topology = topology
        self.serving: dict[str, PipelineSupervisor] = {}
        self.adapters = RuntimeAdapters(topology.model, self.serving, adapter_folder)
        self.departures = Departures(self.serving)
        self.formed: FormedPipeline | None = None
        self.facts = self.weights = pb.ModelFacts()
        self._listener = listener
        self._make_workers = make_workers
        self._supervisors: dict[str, PipelineSupervisor] = {}
        self._tokenizer = tokenizer_digest(Path(topology.model.path))

    @property
    def all_serve(self) -> bool:
        """True if every pipeline of the topology serves."""
        return len(self.serving) == len(self._supervisors)

    @property
    def may_serve(self) -> bool:
        """True if a pipeline serves or will be formed again."""
        return bool(self.serving) or any(supervisor.recovers for supervisor in self._supervisors.values())

    @property
    def reports(self) -> tuple[PipelineReport, ...]:
        """The published states, in the order in which the pipelines were added."""
        return tuple(supervisor.report for supervisor in self._supervisors.values())

    @property
    def most_slots(self) -> int:
        """K/V slots of the largest pipeline that serves or is expected back; 0 without one."""
        return max((supervisor.expected_blocks for supervisor in self._supervisors.values()), default=0) * BLOCK_SIZE

    @property
    def loaded_bytes(self) -> LoadedBytes:
        """Sum over all pipelines."""
        return LoadedBytes.sum(supervisor.workers.loaded_bytes for supervisor in self._supervisors.values())

    @property
    def stall_seconds(self) -> float:
        """Longest bound of the pipelines' latest iterations, 0 without pipelines."""
        return max((supervisor.watch.seconds for supervisor in self._supervisors.values()), default=0.0)

    def forget_progress(self) -> None:
        """Let every pipeline report its progress anew."""
        for supervisor in self._supervisors.values():
            supervisor.furthest = NO_PROGRESS
        self.adapters.forget_progress()

    def reconfigure(self, config: EngineConfig) -> None:
        """Apply changed options to all pipelines."""
        for supervisor in self._supervisors.values():
            supervisor.reconfigure(config)

    def begin(self, config: EngineConfig) -> None:
        """Start forming each pipeline of the topology that has no supervisor yet."""
        for spec in self.topology.pipelines:
            if spec.id not in self._supervisors:
                supervisor = PipelineSupervisor(
                    spec,
                    self.topology,
                    config,
                    self._listener,
                    self._make_workers,
                    partial(self._check_weights, spec),
                    partial(self._complete, spec),
                )
                self._supervisors[spec.id] = supervisor
                supervisor.begin()
                self._listener.on_change()

    def _check_weights(self, spec: PipelineSpec, workers: PipelineWorkers) -> None:
        """Raise WorkerLostError if another pipeline serves with other weights than the workers of `spec` have."""
        for other in self.serving.values():
            if what := difference(other.workers.facts, workers.facts):
                raise different_weights(f"pipeline {other.id}", f"pipeline {spec.id}", what, spec.workers[0])

    async def _complete(self, spec: PipelineSpec, workers: PipelineWorkers) -> None:
        await self.adapters.bring(workers)
        self._check_weights(spec, workers)  # another pipeline may have begun to serve meanwhile
        self._compare_tokenizer(spec, workers.facts.tokenizer)

    def _compare_tokenizer(self, spec: PipelineSpec, theirs: str) -> None:
        """Warn if the workers have another tokenizer.json than the master: only the master reads the file.

        Nothing is refused: most changes of a tokenizer leave the tokens of texts as they are.
        """
        if self._tokenizer and theirs and theirs != self._tokenizer:
            logger.warning(
                "pipeline %s: tokenizer.json beside its weights is not that of this master (%s and %s): if they give "
                "other tokens, answers are wrong; use the same files, on a cluster by a commit in spec.model.revision",
                spec.id,
                theirs,
                self._tokenizer,
            )

    def check(self, topology: Topology, num_requests: int) -> None:
        """Raise an error if the present topology must not become `topology` while the engine runs.

        ConfigurationError: it never may. RequestsUnfinishedError: the `num_requests` unfinished requests keep the last
        pipeline, because they are newer than the report by which the sender has decided to remove it.
        """
        present = self.topology
        if topology.model_copy(update={"pipelines": present.pipelines, "closed": present.closed}) != present:
            raise ConfigurationError("topology: only `pipelines` and `closed` can change while the engine runs")
        if topology.pipelines:
            return
        if self.formed is None and not topology.closed:  # requests are checked against what a pipeline reported
            raise ConfigurationError("topology: `pipelines` can be empty only after one of them has served")
        if present.pipelines and num_requests:
            raise RequestsUnfinishedError(f"topology: the last pipeline stays: {num_requests} requests are unfinished")

    def refusal(self, submission: Submission) -> str:
        """Return why a request is refused, "" if it is not.

        The pipelines of a closed topology finish what was accepted, also by an earlier master, but not an answer that
        other weights have begun.
        """
        if submission.generated and submission.weights is not None:
            changed = self._changes(submission.weights, self.weights)
            if what := changed.get(submission.adapter, changed[0]):
                return replaced(what)
        is_resumed = submission.generated is not None
        return "" if is_resumed and self.topology.pipelines else self.topology.closed

    def check_fits(self, request: Request) -> None:
        """Raise RequestError for a request that exceeds the engine's limits; check nothing before the engine serves."""
        if self.formed is not None and self.facts.vocabulary_size:
            check_fits(request, self.facts.max_model_len, self.most_slots or self.formed.num_slots)
            if request.checked_vocabulary != self.facts.vocabulary_size:
                check_values(request, self.facts.vocabulary_size)
                request.checked_vocabulary = self.facts.vocabulary_size
        self.adapters.check_held(request.adapter)

    async def replace(self, topology: Topology) -> set[str]:
        """End the pipelines that `topology` does not have in the same form, and return the ids of those that stay.

        `begin` begins the new pipelines of `topology`.
        """
        self.topology = topology
        specs = {spec.id: spec for spec in topology.pipelines}
        leaving = [
            supervisor for supervisor in self._supervisors.values() if specs.get(supervisor.id) != supervisor.spec
        ]
        await asyncio.gather(*(supervisor.end() for supervisor in leaving))
        for supervisor in leaving:
            del self._supervisors[supervisor.id]
            await supervisor.workers.close()
        return set(self._supervisors)

    def add_serving(self, supervisor: PipelineSupervisor, level: int) -> None:
        """Note and log that a pipeline serves; requests of pipelines with departing workers move to it."""
        self.serving[supervisor.id] = supervisor
        self.departures.move()
        formed = formed_pipeline(supervisor.id, supervisor.workers)
        if len({entry.workers.facts.kernels for entry in self.serving.values()}) > 1:
            formed = replace(formed, exactness="L1")  # bits depend on the instruction set
        self.formed = formed
        text, workers = "pipeline %s serves: epoch %d, %d partitions, %d K/V slots", supervisor.workers
        logger.log(level, text, supervisor.id, workers.epoch, len(supervisor.spec.workers), formed.num_slots)

    def take_facts(self, supervisor: PipelineSupervisor) -> dict[int, str]:
        """Set `facts` to those of a pipeline that serves; return what differs from `weights`, see `changes`."""
        self.facts = supervisor.workers.facts
        changed = self._changes(self.weights, self.facts)
        # Workers of older versions report nothing: what was known is that of the next ones, if they serve the same.
        self.weights = with_known(pb.ModelFacts() if changed[0] else self.weights, self.facts)
        return changed

    def _changes(self, before: pb.ModelFacts, after: pb.ModelFacts) -> dict[int, str]:
        return changes(before, after, [adapter.name for adapter in self.topology.model.adapters])

    def remove_serving(self, supervisor: PipelineSupervisor) -> None:
        """Note that a pipeline no longer serves."""
        del self.serving[supervisor.id]

    async def end(self) -> None:
        """Stop all supervisions; the workers and connections remain until `disconnect`."""
        await asyncio.gather(*(supervisor.end() for supervisor in self._supervisors.values()))

    async def disconnect(self, reason: str) -> None:
        """Close the connections of all pipelines; shut down workers that the engine owns."""
        await asyncio.gather(*(supervisor.disconnect(reason) for supervisor in self._supervisors.values()))
