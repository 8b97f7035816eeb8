"""`orca serve`: master and workers on this machine.

Starts `orca worker` processes on Unix sockets, builds their topology and runs the same server as `orca master`.
No worker outlives this process: workers get SIGTERM, then SIGKILL, and the kernel kills them if this
process is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from orca_contract.topology import Communication, ModelSpec, PipelineSpec, Topology
from orca_protos.command_line import OneLineParser
from orca_protos.log_lines import configure_logging
from orca_protos.model_files import FileError, MissingFileError, regular_file

from orca_master.commands.argument_types import positive
from orca_master.commands.config_file import with_config_file
from orca_master.commands.options import (
    add_engine_options,
    add_model_options,
    add_server_options,
    endpoint_config,
    engine_config,
)
from orca_master.commands.ports import SIGNALS, Ports, bind
from orca_master.commands.preflight import check, model_command, text_command
from orca_master.errors import ConfigurationError

PR_SET_PDEATHSIG = 1
WORKER_EXIT_SECONDS = 5.0


def _die_with_parent() -> None:
    """Make the kernel kill the child when this process ends (prctl(2), Linux). Runs in the child before exec."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def local_workers(count: int, log_format: str = "text", log_level: str = "warning") -> Iterator[list[str]]:
    """Start `count` workers and yield their addresses; end them at the exit of the context.

    Must be entered on the main thread while no other thread exists: PR_SET_PDEATHSIG applies to the
    thread that started the child.
    """
    with tempfile.TemporaryDirectory(prefix="orca-") as folder:
        addresses = [f"unix:{folder}/worker-{index}.sock" for index in range(count)]
        log_options = ("--log-format", log_format, "--log-level", log_level)
        workers = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", "orca_worker", "--listen", address, *log_options],
                # No other thread exists yet, so preexec_fn is safe.
                preexec_fn=_die_with_parent,  # noqa: PLW1509
                start_new_session=True,  # Ctrl-C reaches only this process, which then ends the workers in order
            )
            for address in addresses
        ]
        try:
            yield addresses
        finally:
            _end(workers)


def _end(workers: list[subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM to the workers, and SIGKILL to those that still run after WORKER_EXIT_SECONDS."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(number)
        deadline = time.monotonic() + WORKER_EXIT_SECONDS
        for worker in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(max(0.0, deadline - time.monotonic()))


def main(argv: list[str]) -> int:
    """Run `orca serve` and return the exit code."""
    parser = OneLineParser(prog="orca serve", description="Serves a model on this machine.")
    parser.add_argument("model", help="Hugging Face model directory")
    parser.add_argument(
        "--pipeline-parallel-size",
        "-pp",
        type=positive,
        default=1,
        help="inter-layer partitions, one worker process each (1)",
    )
    parser.add_argument("--replicas", type=positive, default=1, help="pipelines that share one request pool (1)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu with gloo, cuda with NCCL (cpu)")
    add_model_options(parser)
    add_engine_options(parser)
    add_server_options(parser)
    for number in SIGNALS:
        signal.signal(number, _leave)
    try:
        arguments = parser.parse_args(with_config_file(argv, positional="model"))
        configure_logging(arguments.log_format, arguments.log_level)
        model = _model_folder(arguments.model)
        names = endpoint_config(arguments, model.name)
        check(
            model_command(
                model, arguments.pipeline_parallel_size, arguments.tensor_parallel_size, arguments.max_model_len
            ),
            text_command(model, names.chat_template),
        )
        listeners = bind(arguments.host, arguments.port, max(1, arguments.api_processes))
    except ConfigurationError as error:
        parser.error(str(error))
    # The report of the start says what a worker's lines would.
    worker_level = "warning" if arguments.log_level == "info" else arguments.log_level
    num_workers = arguments.replicas * arguments.pipeline_parallel_size
    with local_workers(num_workers, arguments.log_format, worker_level) as addresses:
        # The import takes a second: do it after the model check, while the workers start.
        # Block signals meanwhile, because any of the imported modules could catch the exception of _leave.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        from orca_master.commands.master import run_to_exit_code

        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        topology = local_topology(
            ModelSpec(
                path=str(model),
                served_name=names.model_names[0],
                dtype=arguments.dtype,
                max_model_len=arguments.max_model_len,
            ),
            arguments.pipeline_parallel_size,
            arguments.tensor_parallel_size,
            arguments.device,
            addresses,
        )
        return run_to_exit_code(parser.prog, topology, engine_config(arguments), names, Ports(listeners))


def _model_folder(name: str) -> Path:
    """Return the resolved model directory; raise ConfigurationError if it has no config.json that can be opened."""
    try:
        folder = Path(name).resolve()
        regular_file(folder, "config.json")
    except MissingFileError as error:
        raise ConfigurationError(f"{name}: no config.json: a Hugging Face model directory is expected") from error
    except FileError as error:
        raise ConfigurationError(str(error)) from error
    except RuntimeError as error:  # a cycle of symbolic links, before Python 3.13
        raise ConfigurationError(f"{name}: {error}") from error
    return folder


def local_topology(
    model: ModelSpec, pipeline_parallel_size: int, tensor_parallel_size: int, device: str, addresses: list[str]
) -> Topology:
    """Return the topology of workers on this machine, `pipeline_parallel_size` workers per pipeline."""
    size = pipeline_parallel_size
    return Topology(
        model=model,
        pipeline_parallel_size=size,
        tensor_parallel_size=tensor_parallel_size,
        communication=Communication(backend="nccl" if device == "cuda" else "gloo", socket_interface="lo"),
        pipelines=[
            PipelineSpec(id=f"local-{index}", workers=addresses[index * size : (index + 1) * size])
            for index in range(len(addresses) // size)
        ],
    )


def _leave(number: int, _: FrameType | None) -> None:
    """Handle a signal before the server runs: unwind the stack, which ends the workers."""
    sys.exit(128 + number)
