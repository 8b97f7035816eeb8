"""`orca master`: the options and the topology of a master whose workers are started separately."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from pathlib import Path

from orca_contract.topology import Communication, PipelineSpec, Topology
from orca_protos.command_line import UNIX, WAYS_OUT, OneLineParser, port
from orca_protos.log_lines import configure_logging
from orca_protos.tls import TlsError, TlsFolder

from orca_master.commands.argument_types import positive
from orca_master.commands.config_file import with_config_file
from orca_master.commands.device_options import add_device_options, check_all_reduce, devices_in_use
from orca_master.commands.model_options import add_model_options, model_spec
from orca_master.commands.options import (
    add_engine_options,
    add_server_options,
    check_engine_options,
    endpoint_config,
    engine_config,
    journal_config,
)
from orca_master.commands.ports import Ports, bind
from orca_master.commands.preflight import check, text_command
from orca_master.commands.topology_file import read_topology
from orca_master.commands.vllm_options import spelled_out
from orca_master.endpoint.admin_token import AdminToken
from orca_master.engine.config import WorkerOwner
from orca_master.errors import ConfigurationError

logger = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    """Run `orca master` and return the exit code."""
    parser = OneLineParser(
        prog="orca master",
        usage="orca master (--topology FILE | --pipeline HOST:PORT,… --model MODEL) [options]",
        description="Runs the engine master with workers that are started separately.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--topology", type=Path, help="topology.json, see docs/contracts.md, section 1")
    source.add_argument(
        "--pipeline", action="append", metavar="HOST:PORT,…", help="workers of one pipeline, in partition order"
    )
    parser.add_argument("--model", help="with --pipeline: model directory, readable by master and workers")
    add_device_options(parser, default_device=None)
    add_model_options(parser)
    add_engine_options(parser)
    add_server_options(parser)
    _add_cluster_options(parser)
    try:
        arguments = parser.parse_args(with_config_file(spelled_out(argv), parser))
        configure_logging(arguments.log_format, arguments.log_level)
        topology = _from_file(parser, arguments) if arguments.topology else _by_hand(arguments)
        check_engine_options(arguments, topology.communication.workers_device)
        tls = _tls(arguments, topology)
        adapters = tuple(adapter.name for adapter in topology.model.adapters)
        names = endpoint_config(arguments, Path(topology.model.path), topology.model.served_name, adapters)
        check(text_command(Path(topology.model.path), names.chat_template))
        journal = journal_config(arguments)
        ports = _ports(arguments)
    except ConfigurationError as error:
        parser.error(str(error))
    from orca_master.commands.server import run_to_exit_code  # imports FastAPI, see check_propagators

    if arguments.insecure:
        logger.warning("--insecure: calls to workers are unencrypted, and workers accept any client on their ports")
    seconds = float(arguments.recovery_timeout)
    owner = WorkerOwner.CLUSTER if seconds else WorkerOwner.ENGINE
    config = replace(
        engine_config(arguments, topology.pipeline_parallel_size),
        worker_owner=owner,
        recovery_timeout=seconds,
        tls=tls,
    )
    return run_to_exit_code(parser.prog, topology, config, names, ports, journal)


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
    token = None
    if arguments.admin_port is not None:
        if arguments.admin_token_file is None:
            raise ConfigurationError("--admin-port needs --admin-token-file")
        token = AdminToken(arguments.admin_token_file)
    host = arguments.host
    return Ports(
        bind(host, arguments.port, max(1, arguments.api_processes)),
        None if arguments.probe_port is None else bind(host, arguments.probe_port)[0],
        None if arguments.admin_port is None else bind(host, arguments.admin_port)[0],
        token,
    )


def _from_file(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Topology:
    for name in (
        "model",
        "dtype",
        "quantization",
        "kv_cache_dtype",
        "lora_modules",
        "speculative_model",
        "max_model_len",
        "tensor_parallel_size",
        "device",
        "communication_backend",
    ):
        if getattr(arguments, name) != parser.get_default(name):
            raise ConfigurationError(f"--{name.replace('_', '-')}: not allowed with --topology, whose file sets it")
    topology = read_topology(arguments.topology)
    check_all_reduce(arguments, topology.tensor_parallel_size, topology.communication.backend)
    return topology


def _by_hand(arguments: argparse.Namespace) -> Topology:
    if arguments.model is None:
        raise ConfigurationError("--model is needed with --pipeline")
    pipelines = [pipeline.split(",") for pipeline in arguments.pipeline]
    if len({len(workers) for workers in pipelines}) != 1:
        raise ConfigurationError("--pipeline: every pipeline must have the same number of workers")
    device, backend = devices_in_use(arguments)
    return Topology(
        model=model_spec(arguments, arguments.model, Path(arguments.model).name, device),
        pipeline_parallel_size=len(pipelines[0]),
        tensor_parallel_size=arguments.tensor_parallel_size,
        communication=Communication.of(device, backend),
        pipelines=[PipelineSpec(id=f"local-{index}", workers=workers) for index, workers in enumerate(pipelines)],
    )
