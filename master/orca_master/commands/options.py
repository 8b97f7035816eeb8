"""Command-line options shared by `orca serve` and `orca master`. Names follow vLLM where vLLM has the option."""

from __future__ import annotations

import argparse
import itertools
import logging
import os
from pathlib import Path
from typing import get_args

from orca_contract.model_choices import AllReduce, AttentionBackend, Device, adapters_refusal, attention_refusal
from orca_protos.command_line import port
from orca_protos.log_lines import add_log_options

from orca_master.commands.argument_types import (
    bound_seconds,
    count,
    folder,
    fraction,
    host_name,
    origin,
    positive,
    root_path,
    stall_seconds,
    wait_seconds,
)
from orca_master.commands.batch_options import add_batch_options, batch_config
from orca_master.commands.http_options import add_http_limits, http_limits
from orca_master.commands.response_options import add_response_options, store_limits
from orca_master.commands.scheduling_options import add_scheduling_options, target_itl
from orca_master.commands.trace_options import add_trace_options, check_traces
from orca_master.commands.vllm_options import add_vllm_options
from orca_master.endpoint.api_keys import ENVIRONMENT, digests_of, lasting_path, read_key_file
from orca_master.endpoint.config import EndpointConfig, default_hosts
from orca_master.engine.config import EngineConfig
from orca_master.errors import ConfigurationError
from orca_master.journal.config import JournalConfig
from orca_master.text.pooling_file import pooling_of

ALL_REDUCE = (
    "sum over the ranks of a worker on GPUs: library: NCCL's; symmetric: torch's symmetric memory for up to 512 KB, at "
    "most 8 ranks, NCCL's for more; not yet run on a GPU (library)"
)

logger = logging.getLogger(__name__)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the engine, also those of scheduling_options.py."""
    add_scheduling_options(parser)
    parser.add_argument(
        "--enforce-eager",
        action="store_true",
        help="disable CUDA graphs and recorded decode iterations",
    )
    parser.add_argument("--all-reduce", choices=get_args(AllReduce), default="library", help=ALL_REDUCE)
    parser.add_argument(
        "--attention-backend",
        choices=get_args(AttentionBackend),
        default="auto",
        help="attention of GPUs: ORCA's own kernels (orca), torch's varlen_attn with FlashAttention-3 (torch: compute "
        "capability 9.0, bfloat16 or float16), or FlashInfer's, without CUDA graphs (flashinfer: bfloat16 or float16); "
        "auto: torch's if its self-test passes, else ORCA's (auto)",
    )
    parser.add_argument(
        "--deterministic",
        choices=("on", "off"),
        default="off",
        help="on: a request has the same tokens and log probabilities bit for bit, whatever else is computed and also "
        "after a recovery (level L2: on the CPU, with --dtype float32), verified by a self-test at start (off)",
    )
    parser.add_argument(
        "--gpu-memory-utilization",
        type=fraction,
        default=0.9,
        help="fraction of the free memory of host or device to use (0.9)",
    )
    parser.add_argument(
        "--stall-timeout",
        type=stall_seconds,
        help="timeout of an iteration in seconds, after which its pipeline is lost; /readyz fails if requests wait and "
        "no iteration has returned for this time (20 times the average of such iterations, 10 to 300, at first 60 and "
        "more; 300 if nothing restarts the workers)",
    )
    parser.add_argument(
        "--max-recovery-wait",
        type=wait_seconds,
        default=60,
        metavar="SECONDS",
        help="while a lost pipeline is formed again, new requests wait if they are expected to wait at most this long; "
        "503 with Retry-After otherwise (60)",
    )
    parser.add_argument(
        "--max-queue-depth",
        type=positive,
        default=4096,
        help="maximum waiting requests, each choice counted; 429 with Retry-After if exceeded (4096)",
    )
    parser.add_argument(
        "--max-queue-tokens",
        type=positive,
        default=8 << 20,
        help="maximum tokens of waiting requests, prompts and completions together (8388608)",
    )
    parser.add_argument(
        "--max-expected-wait",
        type=bound_seconds,
        default=60.0,
        metavar="SECONDS",
        help="maximum expected wait of a new request, from measured rates; 429 with Retry-After if exceeded (60)",
    )
    parser.add_argument(
        "--iteration-log",
        type=Path,
        metavar="FILE",
        help="write a JSON line per iteration, with its batch and the times of each stage",
    )
    add_trace_options(parser)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the HTTP server."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=port, default=8000, help="port to listen on, 0 for any (8000)")
    parser.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="key required from clients (Authorization: Bearer KEY), repeatable; also read from ORCA_API_KEY",
    )
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="keys, or sha256: and a digest, one per line; reloaded when the file changes",
    )
    parser.add_argument(
        "--root-path", type=root_path, default="", metavar="PATH", help="path at which a proxy serves this server"
    )
    parser.add_argument(
        "--allowed-hosts",
        type=host_name,
        action="append",
        metavar="NAME",
        help="allowed names in a request's Host field, repeatable, * for any; others get 400 (any; loopback names if "
        "--host is a loopback address)",
    )
    parser.add_argument(
        "--allowed-origins",
        type=origin,
        action="append",
        metavar="ORIGIN",
        help="allowed origins of browsers (CORS), repeatable (any; none if API keys are given)",
    )
    add_log_options(parser)
    parser.add_argument(
        "--request-timeout", type=positive, metavar="SECONDS", help="timeout of a request; 408 if exceeded (no limit)"
    )
    parser.add_argument(
        "--drain-timeout",
        type=positive,
        default=30,
        metavar="SECONDS",
        help="maximum wait for running requests after SIGTERM (30)",
    )
    parser.add_argument(
        "--api-processes",
        type=count,
        default=0,
        metavar="N",
        help="processes for HTTP and text, which else share an interpreter with the scheduler; useful above some "
        "thousand tokens per second (0)",
    )
    parser.add_argument(
        "--journal",
        type=folder,
        metavar="DIR",
        help="folder in which accepted requests, prompts included, and their tokens are recorded: a restarted master "
        "finishes them, and clients read them again at /v1/requests/ID (none)",
    )
    parser.add_argument(
        "--resume-window",
        type=positive,
        default=300,
        metavar="SECONDS",
        help="with --journal: how long a request is kept after its end (300)",
    )
    add_http_limits(parser)
    add_response_options(parser)
    add_batch_options(parser)
    parser.add_argument("--disable-log-requests", action="store_true", help="no log line per request")
    parser.add_argument("--no-vllm-metrics", action="store_true", help="export no metrics under vLLM's names")
    parser.add_argument("--config", metavar="FILE", help="YAML file of these options")
    add_vllm_options(parser)


def check_engine_options(arguments: argparse.Namespace, device: Device) -> None:
    """Raise ConfigurationError for an option that workers on a device refuse, or for traces that cannot be sent."""
    check_traces(arguments.otlp_traces_endpoint)
    if refusal := attention_refusal(arguments.attention_backend, device):
        raise ConfigurationError(f"--attention-backend {refusal}")


def engine_config(arguments: argparse.Namespace, pipeline_parallel_size: int) -> EngineConfig:
    """Return the options of an engine with so many partitions."""
    return EngineConfig(
        max_batch_size=arguments.max_batch_size,
        token_budget=arguments.token_budget,
        target_itl=target_itl(arguments.target_itl, pipeline_parallel_size),
        balanced=not arguments.no_balanced_batches,
        lookahead=not arguments.no_lookahead,
        prefix_caching=arguments.enable_prefix_caching,
        speculative_tokens=arguments.speculative_tokens,
        enforce_eager=arguments.enforce_eager,
        attention_backend=arguments.attention_backend,
        all_reduce=arguments.all_reduce,
        deterministic=arguments.deterministic == "on",
        admission=arguments.admission,
        scheduling_policy=arguments.scheduling_policy,
        kv_slots=arguments.kv_slots,
        memory_utilization=arguments.gpu_memory_utilization,
        max_queued_requests=arguments.max_queue_depth,
        max_queued_tokens=arguments.max_queue_tokens,
        max_expected_wait=arguments.max_expected_wait,
        stall_timeout=arguments.stall_timeout,
        max_recovery_wait=float(arguments.max_recovery_wait),
        drain_timeout=float(arguments.drain_timeout),
        iteration_log=arguments.iteration_log,
        traces_endpoint=arguments.otlp_traces_endpoint,
        runtime_adapters=arguments.enable_runtime_adapters,
    )


def journal_config(arguments: argparse.Namespace) -> JournalConfig | None:
    """Return the options of the journal, None without one; raise ConfigurationError."""
    if arguments.journal is None:
        return None
    if arguments.api_processes:
        raise ConfigurationError("--journal: does not work with --api-processes yet, remove one of them")
    if arguments.journal == arguments.batch_directory:
        raise ConfigurationError(
            f"--journal and --batch-directory: both are {arguments.journal}: each needs a folder of its own, such as "
            f"{arguments.journal / 'journal'} and {arguments.journal / 'batches'}"
        )
    return JournalConfig(arguments.journal, float(arguments.resume_window))


def endpoint_config(
    arguments: argparse.Namespace, model_path: Path, model_name: str, adapters: tuple[str, ...] = ()
) -> EndpointConfig:
    """Return the options of the endpoint; raise ConfigurationError for an invalid key, key file or name of an adapter,
    for batches with API processes, or for a pooling of the model that is not supported.

    Removes the keys from `arguments` and from the environment.
    """
    model_names = tuple(itertools.chain.from_iterable(arguments.served_model_name or [[model_name]]))
    if refusal := adapters_refusal(model_names, adapters):
        raise ConfigurationError(f"--lora-modules: {refusal}")
    keys = digests_of(arguments.api_key, "--api-key")
    arguments.api_key = []
    if ENVIRONMENT in os.environ:  # removed, so that child processes do not inherit it
        keys |= digests_of([os.environ.pop(ENVIRONMENT).strip()], ENVIRONMENT)
    key_file: Path | None = arguments.api_key_file
    if key_file is not None:
        file_keys = read_key_file(key_file)  # ends the start if the file is invalid; each KeyRing reads it again
        if (lasting := lasting_path(key_file)) is None:
            logger.info("--api-key-file %s: it can be read only once, its keys are not reloaded", key_file)
            keys |= file_keys
        key_file = lasting
    hosts = arguments.allowed_hosts or default_hosts(arguments.host)
    origins = arguments.allowed_origins
    if (keys or key_file) and origins is None:
        logger.warning("API keys are set, so that CORS is disabled: --allowed-origins ORIGIN allows browsers' origins")
        origins = []
    return EndpointConfig(
        model_names=model_names,
        chat_template=arguments.chat_template,
        adapters=adapters,
        runtime_adapters=arguments.enable_runtime_adapters is not None,
        embedding_pooling=pooling_of(model_path, arguments.embedding_pooling),
        tool_call_parser=arguments.tool_call_parser,
        reasoning_parser=arguments.reasoning_parser,
        request_timeout=arguments.request_timeout,
        api_keys=keys,
        api_key_file=key_file,
        root_path=arguments.root_path,
        allowed_origins=("*",) if origins is None else tuple(origins),
        allowed_hosts=() if "*" in hosts else tuple(hosts),
        log_format=arguments.log_format,
        log_level=arguments.log_level,
        log_requests=not arguments.disable_log_requests,
        vllm_metrics=not arguments.no_vllm_metrics,
        num_processes=arguments.api_processes,
        http=http_limits(arguments),
        stored_responses=store_limits(arguments),
        batches=batch_config(arguments),
    )
