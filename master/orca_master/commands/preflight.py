"""Checks a model before a server starts, in parallel processes with limits of memory and time.

Parsing an untrusted file can take any amount of memory or time, which must not affect the server. Like every child
interpreter those of `check` run with -P, to import nothing from the current folder, which may be the model's.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from orca_contract.model_choices import Quantization

from orca_master.commands.child_process import Fork
from orca_master.errors import ConfigurationError

MEMORY_BYTES = 576 << 20
"""Limit of a check's address space; a tokenizer of 256,000 tokens needs 250 MiB, a copy of `orca serve` has 100 MiB."""
CPU_SECONDS = 15
"""Limit of a check's processor time; a tokenizer of 256,000 tokens takes 2 s."""
WALL_SECONDS = 120.0
"""Timeout of all checks together, for files on an unresponsive volume."""
REFUSED = 2
ENVIRONMENT = {"RUST_BACKTRACE": "0"}


def model_command(
    folder: Path,
    pipeline_parallel_size: int,
    tensor_parallel_size: int,
    max_model_len: int | None,
    quantization: Quantization,
    device: str,
    adapters: Mapping[str, Path] = MappingProxyType({}),
) -> list[str]:
    """Return the command that checks configuration and weights (in the package orca_worker)."""
    return [
        *("orca_worker.model_check", str(folder), "--max-model-len", str(max_model_len or 0)),
        *("-pp", str(pipeline_parallel_size), "-tp", str(tensor_parallel_size)),
        *("--quantization", quantization, "--device", device),
        *(f"--adapter={name}={path}" for name, path in adapters.items()),
    ]


def draft_command(folder: Path, tensor_parallel_size: int, quantization: Quantization, device: str) -> list[str]:
    """Return the command that checks configuration and weights of a draft model, which has no partitions."""
    return model_command(folder, 1, tensor_parallel_size, None, quantization, device)


def text_command(folder: Path, chat_template: Path | None) -> list[str]:
    """Return the command that checks tokenizer, stop tokens and chat template."""
    options = ["--chat-template", str(chat_template)] if chat_template is not None else []
    return ["orca_master.commands.text_check", str(folder), *options]


def check(*commands: Sequence[str]) -> None:
    """Run check commands (module and arguments) in new interpreters; raise ConfigurationError with the first error."""
    environment = {**os.environ, **ENVIRONMENT}
    deadline = time.monotonic() + WALL_SECONDS
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        for command in commands
    ]
    try:
        for command, process in zip(commands, processes, strict=True):
            _, errors = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
            _judge(command, process.returncode, errors)
    except subprocess.TimeoutExpired as error:
        raise _overdue(commands) from error
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


def check_in_forks(*commands: Sequence[str]) -> None:
    """Run check commands like `check`, in copies of this process, which has one thread.

    Where this process has imported most of their modules, they take a fifth of the processor time of `check`.
    """
    deadline = time.monotonic() + WALL_SECONDS
    forks: list[Fork] = []
    try:
        forks.extend(map(_fork, commands))
        for command, fork in zip(commands, forks, strict=True):
            errors = fork.output(deadline)
            _judge(command, fork.wait(), errors)
    except TimeoutError as error:
        raise _overdue(commands) from error
    finally:
        for fork in forks:
            fork.close()


def _fork(command: Sequence[str]) -> Fork:
    """Run a check command in a copy of this process."""
    module, *arguments = command

    def run() -> int:
        os.environ.update(ENVIRONMENT)
        return importlib.import_module(module).main(arguments) or 0

    return Fork(run)


def _judge(command: Sequence[str], code: int, errors: str) -> None:
    """Raise ConfigurationError unless the command has ended with `code` 0. `errors`: its standard error."""
    if code == 0:
        return
    lines = errors.strip().splitlines()
    if code == REFUSED and lines:
        raise ConfigurationError(lines[-1])
    if code < 0:
        raise ConfigurationError(
            f"{command[1]}: checking the model's files took more than {CPU_SECONDS} s of processor time or "
            f"{MEMORY_BYTES >> 20} MiB ({command[0]} was killed by signal {-code})"
        )
    raise ConfigurationError(
        f"{command[1]}: {command[0]} failed with exit code {code}{''.join(f': {line}' for line in lines[-1:])}"
    )


def _overdue(commands: Sequence[Sequence[str]]) -> ConfigurationError:
    return ConfigurationError(f"{commands[0][1]}: files were not read within {WALL_SECONDS:.0f} s")
