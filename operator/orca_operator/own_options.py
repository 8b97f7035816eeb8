"""The options of `orca master` and `orca worker` that the operator sets, which `extraArgs` must not repeat. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MASTER_OPTIONS: Mapping[str, str] = {
    "--admin-port": "",
    "--admin-token-file": "",
    "--admission": "scheduler.admission",
    "--api-key-file": "auth.apiKeySecretRef",
    "--api-processes": "master.apiProcesses",
    "--communication-backend": "communication.backend",
    "--config": "",
    "--device": "worker.device",
    "--drain-timeout": "drainTimeoutSeconds",
    "--dtype": "model.dtype",
    "--enable-prefix-caching": "scheduler.prefixCaching",
    "--host": "",
    "--insecure": "tls.mode",
    "--journal": "master.journal",
    "--kv-cache-dtype": "model.kvCacheDtype",
    "--kv-slots": "scheduler.kvSlots",
    "--lora-modules": "model.adapters",
    "--max-batch-size": "scheduler.maxBatchSize",
    "--max-expected-wait": "scheduler.maxExpectedWaitSeconds",
    "--max-model-len": "model.maxModelLen",
    "--max-num-batched-tokens": "scheduler.tokenBudget",
    "--max-num-seqs": "scheduler.maxBatchSize",
    "--max-queue-depth": "scheduler.maxQueueDepth",
    "--model": "model.uri",
    "--otlp-traces-endpoint": "master.otlpTracesEndpoint",
    "--no-enable-prefix-caching": "scheduler.prefixCaching",
    "--pipeline": "replicas",
    "--port": "",
    "--probe-port": "",
    "--quantization": "model.quantization",
    "--recovery-timeout": "recoveryPolicy.recoveryTimeoutSeconds",
    "--resume-window": "master.journal.resumeWindowSeconds",
    "--scheduling-policy": "scheduler.policy",
    "--speculative-model": "model.draftPath",
    "--speculative-tokens": "scheduler.speculativeTokens",
    "--stall-timeout": "recoveryPolicy.stallTimeoutSeconds",
    "--target-itl": "scheduler.targetItlMilliseconds",
    "--tensor-parallel-size": "parallelism.tensorParallelSize",
    "-tp": "parallelism.tensorParallelSize",
    "--tls-dir": "tls.mode",
    "--token-budget": "scheduler.tokenBudget",
    "--topology": "",
}
WORKER_OPTIONS: Mapping[str, str] = {
    "--drain-timeout": "drainTimeoutSeconds",
    "--heartbeat": "",
    "--insecure": "tls.mode",
    "--listen": "",
    "--probe-port": "",
    "--tls-dir": "tls.mode",
}
"""Option → the field of the spec that sets it, "" for an option that no field sets."""


def cel(options: Mapping[str, str]) -> str:
    """Return the rule that no text of a list is one of the options, or an abbreviation, which earlier images accept.

    Commands accept underscores in the names of options, too.
    """
    name = "arg.split('=')[0].replace('_', '-')"
    return f"self.all(arg, !arg.startsWith('-') || !{sorted(options)}.exists(o, o.startsWith({name})))"


def is_free_of(arguments: Iterable[str], options: Mapping[str, str]) -> bool:
    """Return what `cel` computes."""
    given = [argument.partition("=")[0].replace("_", "-") for argument in arguments if argument.startswith("-")]
    return not any(option.startswith(name) for name in given for option in options)


def sentence(options: Mapping[str, str]) -> str:
    """Return a message that names the options, with the fields to set instead."""
    listed = [f"{option} ({field})" if field else option for option, field in options.items()]
    return f"must not contain options that the operator sets: {', '.join(listed)}, or abbreviations of them"
