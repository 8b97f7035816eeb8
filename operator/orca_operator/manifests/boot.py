"""The start-up files of a master: topology and options, in the same format as for `orca master` started by hand."""

from __future__ import annotations

import json
from typing import Any

import yaml
from orca_contract.scheduler import SchedulerKnobs
from orca_contract.topology import Communication, ModelSpec, PipelineSpec, Topology

from orca_operator import names
from orca_operator.manifests.context import Context
from orca_operator.manifests.master import ADMIN, API_KEYS
from orca_operator.manifests.model import model_source


def topology(context: Context, pipelines: int) -> Topology:
    """Return the open topology of `pipelines`; a master starts with at least 1."""
    spec, partitions = context.spec, range(context.spec.parallelism.pipeline_parallel_size)
    return Topology(
        model=ModelSpec(
            path=model_source(spec.model).path,
            served_name=spec.model.name or context.name,
            dtype=spec.model.dtype,
            max_model_len=spec.model.max_model_len,
        ),
        pipeline_parallel_size=spec.parallelism.pipeline_parallel_size,
        tensor_parallel_size=spec.parallelism.tensor_parallel_size,
        communication=Communication(
            backend=spec.communication.backend,
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


def scheduler_knobs(context: Context) -> SchedulerKnobs:
    """Return the settings of scheduler and recovery that change without a restart.

    The boot ConfigMap has them too, except those for which an older master would refuse to start (None: its default).
    """
    scheduler, recovery = context.spec.scheduler, context.spec.recovery_policy
    return SchedulerKnobs(
        max_batch_size=scheduler.max_batch_size,
        token_budget=scheduler.token_budget,
        max_queue_depth=scheduler.max_queue_depth,
        max_expected_wait_seconds=scheduler.max_expected_wait_seconds,
        stall_timeout_seconds=recovery.stall_timeout_seconds or "automatic",
        recovery_timeout_seconds=recovery.recovery_timeout_seconds,
        admission=scheduler.admission,
        policy=scheduler.policy,
    )


def options(context: Context) -> dict[str, Any]:
    """Return the options of `orca master`."""
    spec = context.spec
    values: dict[str, Any] = {
        "host": "0.0.0.0",
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
    if spec.master.api_processes:
        values["api-processes"] = spec.master.api_processes
    if spec.auth.api_key_secret_ref is not None:
        values["api-key-file"] = f"{API_KEYS}/keys"
    return values


def boot_config_map(context: Context, pipelines: int) -> dict[str, Any]:
    """Return the ConfigMap; a running master receives changes through its admin port instead."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": context.metadata(
            names.boot(context.name, context.revision), names.master_labels(context.name, context.revision)
        ),
        "data": {
            "topology.json": json.dumps(topology(context, max(1, pipelines)).wire(), indent=1, sort_keys=True),
            "master.yaml": yaml.safe_dump(options(context), sort_keys=True),
        },
    }
