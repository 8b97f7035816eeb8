"""The start-up files of a master: topology and options, in the same format as for `orca master` started by hand.

A revision keeps the parts of its files that no edit changes (`Kept`), as it keeps its pods: an option that a newer
operator adds would keep an older master from starting.
"""

from __future__ import annotations

import json
import posixpath
from typing import Any

import yaml
from orca_contract.scheduler import SchedulerKnobs
from orca_contract.topology import AdapterSpec, Communication, ModelSpec, PipelineSpec, Topology
from pydantic import BaseModel, ConfigDict

from orca_operator import names
from orca_operator.manifests.context import Context
from orca_operator.manifests.master import ADMIN, API_KEYS
from orca_operator.manifests.model import model_source

LIVE_OPTIONS = (
    "admission", "max-batch-size", "max-queue-depth", "recovery-timeout", "stall-timeout", "token-budget",
)  # fmt: skip
"""Options that follow the spec while a revision runs."""


class Kept(BaseModel):
    """Parts of the start-up files that stay the same while a revision has workloads.

    Parts that a newer operator has added are kept, too.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    options: dict[str, Any]
    """All but the live options."""
    live: list[str]
    """The live options that the revision's master knows."""
    topology: dict[str, Any]
    """All but the pipelines."""


def kept_files(context: Context) -> Kept:
    """Return the parts that a revision keeps which begins now."""
    fixed = {name: value for name, value in _options(context).items() if name not in LIVE_OPTIONS}
    wire = {name: value for name, value in _topology(context, 1).wire().items() if name != "pipelines"}
    return Kept(options=fixed, live=list(LIVE_OPTIONS), topology=wire)


def topology(context: Context, pipelines: int, kept: Kept | None = None) -> Topology:
    """Return the topology of `pipelines`, at least 1; of a revision that has begun before, with its `kept` parts."""
    return Topology.model_validate(_wire(context, pipelines, kept))


def _wire(context: Context, pipelines: int, kept: Kept | None) -> dict[str, Any]:
    wire = _topology(context, pipelines).wire()
    return wire if kept is None else {**kept.topology, "pipelines": wire["pipelines"]}


def _topology(context: Context, pipelines: int) -> Topology:
    spec, partitions = context.spec, range(context.spec.parallelism.pipeline_parallel_size)
    source = model_source(spec)
    return Topology(
        model=ModelSpec(
            path=source.path,
            served_name=spec.model.name or context.name,
            dtype=spec.model.dtype,
            max_model_len=spec.model.max_model_len,
            quantization=spec.model.quantization or "none",
            kv_cache_dtype=spec.model.kv_cache_dtype or "auto",
            adapters=[
                AdapterSpec(name=adapter.name, path=posixpath.join(source.path, adapter.path))
                for adapter in spec.model.adapters or ()
            ],
            draft_path=spec.model.draft_path and posixpath.join(source.path, spec.model.draft_path),
        ),
        pipeline_parallel_size=spec.parallelism.pipeline_parallel_size,
        tensor_parallel_size=spec.parallelism.tensor_parallel_size,
        communication=Communication(
            backend=spec.communication.backend,
            device=spec.worker.device,
            socket_interface=spec.communication.socket_interface or "",
            env=spec.communication.env,
        ),
        pipelines=[
            PipelineSpec(
                id=names.pipeline_id(context.revision, index),
                workers=[
                    names.worker_address(context.name, context.namespace, context.revision, partition, index)
                    for partition in partitions
                ],
            )
            for index in range(pipelines)
        ],
    )


def scheduler_knobs(context: Context, kept: Kept) -> SchedulerKnobs:
    """Return the settings of scheduler, recovery and drain that change without a restart.

    The boot ConfigMap has them too, except those for which an older master would refuse to start (None: its default).
    The drain timeout can only become smaller: the grace period of a pod does not change.
    """
    spec = context.spec
    scheduler, recovery, drain = spec.scheduler, spec.recovery_policy, spec.drain_timeout_seconds
    return SchedulerKnobs(
        max_batch_size=scheduler.max_batch_size,
        token_budget=scheduler.token_budget,
        max_queue_depth=scheduler.max_queue_depth,
        max_expected_wait_seconds=scheduler.max_expected_wait_seconds,
        stall_timeout_seconds=recovery.stall_timeout_seconds or "automatic",
        recovery_timeout_seconds=recovery.recovery_timeout_seconds,
        admission=scheduler.admission,
        policy=scheduler.policy,
        drain_timeout_seconds=drain if drain < kept.options.get("drain-timeout", drain) else None,
    )


def options(context: Context, kept: Kept | None = None) -> dict[str, Any]:
    """Return the options of `orca master`; of a revision that has begun before, with its `kept` ones."""
    values = _options(context)
    if kept is None:
        return values
    return {**kept.options, **{name: values[name] for name in kept.live if name in values}}


def _options(context: Context) -> dict[str, Any]:
    spec = context.spec
    values: dict[str, Any] = {
        "host": "::",
        "port": names.API_PORT,
        "probe-port": names.PROBE_PORT,
        "admin-port": names.ADMIN_PORT,
        "admin-token-file": f"{ADMIN}/token",
        "max-batch-size": spec.scheduler.max_batch_size,
        "token-budget": spec.scheduler.token_budget,
        "max-queue-depth": spec.scheduler.max_queue_depth,
        "admission": spec.scheduler.admission,
        "recovery-timeout": spec.recovery_policy.recovery_timeout_seconds,
        "drain-timeout": spec.drain_timeout_seconds,
    }
    if spec.recovery_policy.stall_timeout_seconds is not None:
        values["stall-timeout"] = spec.recovery_policy.stall_timeout_seconds
    if spec.scheduler.kv_slots is not None:
        values["kv-slots"] = spec.scheduler.kv_slots
    if spec.scheduler.target_itl_milliseconds is not None:
        values["target-itl"] = spec.scheduler.target_itl_milliseconds
    if spec.scheduler.prefix_caching is False:
        values["no-enable-prefix-caching"] = True
    if spec.scheduler.speculative_tokens is not None:
        values["speculative-tokens"] = spec.scheduler.speculative_tokens
    if spec.master.api_processes:
        values["api-processes"] = spec.master.api_processes
    if spec.auth.api_key_secret_ref is not None:
        values["api-key-file"] = f"{API_KEYS}/keys"
    return values


def boot_config_map(context: Context, pipelines: int, kept: Kept | None = None) -> dict[str, Any]:
    """Return the ConfigMap; a running master receives changes through its admin port instead."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": context.metadata(
            names.boot(context.name, context.revision), names.master_labels(context.name, context.revision)
        ),
        "data": {
            "topology.json": json.dumps(_wire(context, max(1, pipelines), kept), indent=1, sort_keys=True),
            "master.yaml": yaml.safe_dump(options(context, kept), sort_keys=True),
        },
    }
