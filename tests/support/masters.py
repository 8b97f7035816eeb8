"""`Masters`: fake engine masters of the pods in an `Api`, with the methods of MasterClient.

A master starts with its revision's boot ConfigMap and keeps later PUTs until its pod is deleted. A pipeline serves
while all its workers are ready, unless a test sets other attributes.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import yaml
from orca_contract import routes
from orca_contract.message import VERSION, Message
from orca_contract.scheduler import SchedulerKnobs
from orca_contract.state import EngineState, FailureReport, JournalState, PipelinePhase, PipelineReport, StateReport
from orca_contract.topology import Topology
from orca_operator import names
from orca_operator.execute import Executor
from orca_operator.master_client import Door, MasterClient, MasterError
from orca_operator.observe import label

from support import pods
from support.api_server import Api


class Masters(MasterClient):
    """`failure`: last failure of every pipeline. `silent`: no answers. `refusal`: status and message for every PUT.

    `hung`: no pipeline serves, although its workers are ready.

    `journal_failure`: why the journal is off, "" while it is on. `version`: of the contract, which a report follows.
    `waiting`: requests that wait, a backlog for a master that had no pipelines; `idle_seconds`: see StateReport.
    """

    def __init__(self, api: Api) -> None:
        super().__init__()
        self.silent = self.hung = False
        self.refusal: tuple[int, str] | None = None
        self.failure: dict[str, Any] | None = None
        self.version = VERSION
        self.journal_failure = ""
        self.waiting = 0
        self.idle_seconds: float | None = None
        self._with_backlog: set[str] = set()
        """The uids of the pods whose requests came without pipelines."""
        self._api = api
        self._memory: dict[str, tuple[Topology, SchedulerKnobs, SchedulerKnobs | None]] = {}
        """By the uid of the pod: topology, knobs at the start, and the last PUT of knobs."""

    async def state(self, door: Door, wait: float = 0.0) -> StateReport:
        await asyncio.sleep(wait)
        pod = self._reach(door, routes.STATE)
        topology, start, changes = self._remembered(pod)
        uid = pod["metadata"]["uid"]
        if not self.waiting:
            self._with_backlog.discard(uid)
        elif not topology.pipelines:
            self._with_backlog.add(uid)
        pipelines = [self._pipeline(spec.id, spec.workers) for spec in topology.pipelines]
        serving = any(pipeline.phase == PipelinePhase.SERVING for pipeline in pipelines)
        return StateReport(
            contract_version=self.version,
            state=EngineState.SERVING if serving else EngineState.LOADING,
            failure="",
            draining=False,
            idle=not self.waiting,
            running=0,
            waiting=self.waiting,
            topology=topology,
            scheduler=changes or start.known_to(0),
            in_force=start.model_copy(update=changes.model_dump(exclude_none=True)) if changes else start,
            pipelines=pipelines,
            journal=JournalState.OFF if self.journal_failure else JournalState.ON,
            journal_failure=self.journal_failure,
            idle_seconds=self.idle_seconds,
            has_backlog=uid in self._with_backlog,
        ).known_to(self.version)

    async def put(self, door: Door, path: str, body: Message) -> StateReport:
        pod = self._reach(door, path)
        name = pod["metadata"]["name"]
        self._api.calls.append(f"PUT {path} to {name}: {_summary(body)}")
        if self.refusal is not None:
            raise MasterError(f"{path}: {self.refusal[0]} {self.refusal[1]}", self.refusal[0])
        topology, start, changes = self._remembered(pod)
        if isinstance(body, Topology):
            topology = body
        else:
            assert isinstance(body, SchedulerKnobs)
            changes = body
        self._memory[pod["metadata"]["uid"]] = (topology, start, changes)
        return await self.state(door)

    def _reach(self, door: Door, path: str) -> dict[str, Any]:
        """Return the master's pod; raise MasterError if the master does not answer or the token is wrong."""
        for (kind, _), pod in self._api.objects.items():
            address = pod.get("status", {}).get("podIP")
            if kind == "Pod" and f"{address}:{names.ADMIN_PORT}" == door.address and not self.silent:
                break
        else:
            raise MasterError(f"{door.address}{path}: ConnectTimeout")
        deployment = label(pod, names.DEPLOYMENT_LABEL)
        if door.token != Executor(self._api).read_admin_token(pods.NAMESPACE, deployment):  # type: ignore[arg-type]
            raise MasterError(f"{path}: 401 the token is wrong", 401)
        return pod

    def _remembered(self, pod: dict[str, Any]) -> tuple[Topology, SchedulerKnobs, SchedulerKnobs | None]:
        uid = pod["metadata"]["uid"]
        if uid not in self._memory:
            boot = names.boot(label(pod, names.DEPLOYMENT_LABEL), pods.revision_of(pod))
            data = self._api.objects["ConfigMap", boot]["data"]
            options = yaml.safe_load(data["master.yaml"])
            start = SchedulerKnobs(
                max_batch_size=options["max-batch-size"],
                token_budget=options["token-budget"],
                max_queue_depth=options["max-queue-depth"],
                max_expected_wait_seconds=60,
                stall_timeout_seconds=options.get("stall-timeout", "automatic"),
                recovery_timeout_seconds=options["recovery-timeout"],
                admission=options["admission"],
                policy="fcfs",
                drain_timeout_seconds=options["drain-timeout"],
            )
            self._memory[uid] = (Topology.model_validate(json.loads(data["topology.json"])), start, None)
        return self._memory[uid]

    def _pipeline(self, name: str, workers: list[str]) -> PipelineReport:
        serves = pods.serves(self._api, workers) and not self.hung
        phase = PipelinePhase.SERVING if serves else PipelinePhase.CONNECTING
        failure = None
        if self.failure is not None:
            recovered = phase is PipelinePhase.SERVING
            phase = phase if recovered else PipelinePhase.RECOVERING
            failure = FailureReport(**self.failure, recovery_seconds=12.0 if recovered else None)
        return PipelineReport(
            id=name, phase=phase, epoch=1 + (failure is not None), loaded_workers=0, last_failure=failure
        )


def _summary(body: Message) -> str:
    if isinstance(body, Topology):
        closed = f", closed: {body.closed}" if body.closed else ""
        return f"pipelines {', '.join(pipeline.id for pipeline in body.pipelines)}{closed}"
    return ", ".join(f"{name} {value}" for name, value in body.wire().items())
