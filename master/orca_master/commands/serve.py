"""`orca serve`: master and workers on this machine.

Starts `orca worker` processes on Unix sockets (local_workers.py), whose ranks import torch while this process checks
the model; if there are more ranks than cores, it checks the model first. Builds the workers' topology and runs the same
server as `orca master` in a child process. This process restarts master and workers that end (serve_parent.py).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import FrameType

from orca_contract.model_choices import Device
from orca_protos.command_line import OneLineParser
from orca_protos.exit_code import describe_exit
from orca_protos.log_lines import configure_logging
from orca_protos.uncollected import uncollected

from orca_master.commands.argument_types import positive
from orca_master.commands.child_process import fork
from orca_master.commands.config_file import with_config_file
from orca_master.commands.device_options import add_device_options, devices_in_use
from orca_master.commands.local_workers import LocalWorkers
from orca_master.commands.model_folder import model_folder
from orca_master.commands.model_options import add_model_options, check_model_options, model_spec
from orca_master.commands.options import (
    add_engine_options,
    add_server_options,
    check_engine_options,
    endpoint_config,
    engine_config,
    journal_config,
)
from orca_master.commands.ports import SIGNALS, Parent, Ports, bind
from orca_master.commands.preflight import check, check_in_forks, draft_command, model_command, text_command
from orca_master.commands.serve_parent import MasterProcess, run_beside
from orca_master.commands.vllm_options import spelled_out
from orca_master.engine.config import WorkerOwner
from orca_master.errors import ConfigurationError

MASTER_END_SECONDS = 5
"""Seconds from the end of the master's drain to the end of its process."""
RECOVERY_SECONDS = 600
"""The default of `recoveryPolicy.recoveryTimeoutSeconds`, too."""


def main(argv: list[str]) -> int:
    """Run `orca serve` and return the exit code."""
    parser = _parser()
    for number in SIGNALS:
        signal.signal(number, _leave)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if a caller has ignored the signal, the kernel keeps no exit codes
    try:
        arguments = parser.parse_args(with_config_file(spelled_out(argv), parser, "model"))
        configure_logging(arguments.log_format, arguments.log_level)
        model = model_folder(_model_of(parser, arguments))
        device, backend = devices_in_use(arguments)
        _check_options(arguments, device)
        names = endpoint_config(arguments, model, model.name, tuple(name for name, _ in arguments.lora_modules))
        journal = journal_config(arguments)
        ranks, num_workers = arguments.tensor_parallel_size, arguments.replicas * arguments.pipeline_parallel_size
        checks = _checks(arguments, model, names.chat_template)
        if num_workers * ranks > len(os.sched_getaffinity(0)):
            # More ranks than cores gain nothing, and a size that the model refuses must not start thousands of them.
            check(*checks)
            checks = []
        # The report of the start says what a worker's lines would.
        worker_level = "warning" if arguments.log_level == "info" else arguments.log_level
        worker_options = [
            *("--log-format", arguments.log_format, "--log-level", worker_level),
            # A worker that gets a signal computes until the master has moved its requests, or has drained.
            *("--drain-timeout", str(arguments.drain_timeout + MASTER_END_SECONDS)),
        ]
        if arguments.no_spare_ranks:
            worker_options.append("--no-spare-rank")

        # Importing torch takes longer than all else: the ranks do it beside the checks and this process's imports.
        def early_ranks(index: int) -> list[str]:
            return ["--start-ranks", f"{ranks}:{index * ranks}:{num_workers * ranks}:{device}:{backend}"]

        local_workers = LocalWorkers(num_workers, worker_options, early_ranks)
    except ConfigurationError as error:
        parser.error(str(error))
    with local_workers as workers:
        try:
            with uncollected():
                # Here and not in the master, which is forked, so that a restarted master is ready sooner.
                from orca_master.commands.local_topology import local_topology
                from orca_master.commands.server import run_to_exit_code
            check_in_forks(*checks)
            spec = model_spec(arguments, str(model), names.model_names[0], device)
            listeners = bind(arguments.host, arguments.port, max(1, arguments.api_processes))
        except ConfigurationError as error:
            workers.kill()
            parser.error(str(error))
        # From here on the parent process waits for signals and passes them on.
        signal.pthread_sigmask(signal.SIG_BLOCK, (*SIGNALS, signal.SIGCHLD))

        def run_master(restarted: bool, parent: Parent) -> int:
            tempfile.tempdir = workers.folder  # removed at the end, also after a kill
            topology = local_topology(
                spec,
                arguments.pipeline_parallel_size,
                ranks,
                device,
                backend,
                workers.addresses,
            )
            seconds = float(arguments.recovery_timeout)
            config = replace(
                engine_config(arguments, arguments.pipeline_parallel_size),
                worker_owner=WorkerOwner.PARENT,
                recovery_timeout=seconds,
                restarted=restarted,
            )
            ports = Ports(listeners, restarted=restarted, parent=parent)
            return run_to_exit_code(parser.prog, topology, config, names, ports, journal)

        def close_port() -> None:
            for listener in listeners:
                listener.close()

        # The parent keeps the port open, so that connections wait while a killed master is restarted.
        master = MasterProcess(lambda restarted, parent: fork(lambda: run_master(restarted, parent)))
        code = run_beside(master, workers, close_port)
        close_port()
    if code < 0:
        print(f"{parser.prog}: error: the master ended: {describe_exit(code)}", file=sys.stderr)
        return 1
    return code


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="orca serve", usage="orca serve MODEL [options]", description="Serves a model on this machine."
    )
    parser.add_argument("model", nargs="?", help="Hugging Face model directory")
    parser.add_argument(
        "--model", dest="named_model", metavar="MODEL", help="the same as an option, as in older versions of vLLM"
    )
    parser.add_argument(
        "--pipeline-parallel-size",
        "-pp",
        type=positive,
        default=1,
        help="inter-layer partitions, one worker process each (1)",
    )
    parser.add_argument(
        "--replicas",
        "--data-parallel-size",
        "-dp",
        type=positive,
        default=1,
        help="pipelines that share one request pool (1)",
    )
    add_device_options(parser, default_device="cpu")
    parser.add_argument(
        "--recovery-timeout",
        type=positive,
        default=RECOVERY_SECONDS,
        metavar="SECONDS",
        help=f"maximum wait of requests, without progress, until a lost pipeline serves again ({RECOVERY_SECONDS})",
    )
    parser.add_argument(
        "--no-spare-ranks",
        action="store_true",
        help="keep no idle process per worker that replaces a failed rank at once (one is kept if 1 GiB is free)",
    )
    add_model_options(parser)
    add_engine_options(parser)
    add_server_options(parser)
    return parser


def _model_of(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> str:
    """Return the model, and end the process without one. Behind names of the model argparse takes it for one, too."""
    if arguments.named_model is not None:
        if arguments.model is not None:
            parser.error(f"argument --model: there is a model without an option, too: {arguments.model}")
        arguments.model = arguments.named_model
    several = [names for names in arguments.served_model_name or [] if len(names) > 1]
    if arguments.model is None and several:
        arguments.model = several[-1].pop()
    if arguments.model is None:
        parser.error("the following arguments are required: model")
    model: str = arguments.model
    return model


def _check_options(arguments: argparse.Namespace, device: Device) -> None:
    """Raise ConfigurationError for an option that workers on the device refuse, or a draft model without a folder."""
    check_model_options(arguments, device)
    check_engine_options(arguments, device)
    if arguments.speculative_model is not None:
        try:
            model_folder(arguments.speculative_model)
        except ConfigurationError as error:
            raise ConfigurationError(f"--speculative-model: {error}") from error


def _checks(arguments: argparse.Namespace, model: Path, chat_template: Path | None) -> list[list[str]]:
    """Return the commands that check the files of the model, and of the draft model."""
    draft, size, quantization = arguments.speculative_model, arguments.tensor_parallel_size, arguments.quantization
    return [
        model_command(
            model,
            arguments.pipeline_parallel_size,
            size,
            arguments.max_model_len,
            quantization,
            arguments.device,
            dict(arguments.lora_modules),
        ),
        text_command(model, chat_template),
        *([] if draft is None else [draft_command(draft, size, quantization, arguments.device)]),
    ]


def _leave(number: int, _: FrameType | None) -> None:
    """Handle a signal before the server runs: unwind the stack, which ends the workers."""
    sys.exit(128 + number)
