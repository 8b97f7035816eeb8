"""Checks a model's folder without torch: config.json, the headers of the weights, and whether both agree.

A controller checks before it starts ranks, and `orca serve` before it starts workers, by

    python -m orca_worker.model_check FOLDER [-pp P] [-tp T] [--max-model-len N] [--quantization Q] [--device D]
        [--adapter NAME=FOLDER ...]

which prints one line and exits with code 2 if the model is invalid. The ranks check the values of the weights while
they read them (checkpoint.py).
"""

from __future__ import annotations

import argparse
import re
import resource
import sys
from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from orca_contract.model_choices import Quantization
from orca_protos import engine_pb2 as pb
from orca_protos.command_line import one_line

from orca_worker.adapter_files import read_adapters
from orca_worker.errors import ModelError
from orca_worker.model_config import read_model_config
from orca_worker.models.family import ModelConfig
from orca_worker.quantized_checkpoints.quantization_config import MARKERS, check_use
from orca_worker.quantized_checkpoints.weight_format import WeightFormat, errors_of
from orca_worker.stored_head import tied_without_head
from orca_worker.weight_headers import WeightHeaders

LAYER = re.compile(r"^(?:transformer\.|model\.)?(?:h|layers)\.(\d{1,6})\.")
ROTARY_BYTES = 64 << 20
"""Tables of cosines and sines up to this size are accepted even if the weights are smaller."""
MEMORY_BYTES = 576 << 20
"""Limit of the process's address space; enough for the largest JSON files that are accepted. A copy of `orca serve`
has 100 MiB of it."""
CPU_SECONDS = 15


class CheckedModel(NamedTuple):
    """The configuration of a model, and the bytes of the tensors of the checked partitions, tensor by tensor.

    `files`: names of the files with weights of the whole model; `own_files`: those of the checked partitions.
    """

    config: ModelConfig
    num_bytes: int
    files: frozenset[str]
    own_files: frozenset[str]


def check_model(
    folder: Path,
    pipeline_parallel_size: int,
    tensor_parallel_size: int,
    max_model_len: int,
    partitions: range,
    quantization: Quantization = "none",
    device: str = "cpu",
    adapters: Sequence[pb.Adapter] = (),
) -> CheckedModel:
    """Check the weights of `partitions`, and the adapters; raise ModelError.

    `max_model_len` 0: the configuration's. Weight files that have only tensors of other partitions may be missing.
    """
    config = read_model_config(folder)
    with errors_of(str(folder / "config.json")):
        check_use(config.weight_format, quantization, device)
    weights = WeightHeaders(folder)
    layers = {int(match[1]) for name in weights.file_of if (match := LAYER.match(name))}
    missing = [layer for layer in range(config.num_layers) if layer not in layers]
    if missing:
        raise ModelError(
            f"{folder / 'config.json'}: {config.num_layers} layers, but the weights have no layer {missing[0]}"
        )
    config = tied_without_head(config, weights.file_of)
    config.check_fits(pipeline_parallel_size, tensor_parallel_size)
    sizes = {}
    for partition in partitions:
        with errors_of(str(folder)):
            tensors = list(
                config.stored_tensors(partition, pipeline_parallel_size, tensor_parallel_size, weights.file_of)
            )
        for name, shape, dtypes in tensors:
            _check_described(folder, name, weights.file_of, config.weight_format)
            stored = weights.tensor(name, dtypes)
            if stored.shape != shape:
                raise ModelError(f"{folder}: tensor {name} has shape {list(stored.shape)}, {list(shape)} is expected")
            sizes[name] = stored.num_bytes
    config.check_length(max_model_len)
    _check_tables(folder, config, max_model_len or config.max_positions, weights.num_bytes())
    read_adapters(adapters, config, weights.file_of)
    own_files = frozenset(weights.file_of[name] for name in sizes)
    return CheckedModel(config, sum(sizes.values()), frozenset(weights.file_of.values()), own_files)


def _check_described(folder: Path, name: str, stored: Container[str], weight_format: WeightFormat | None) -> None:
    """Raise ModelError if a missing weight is the head, or is stored as integers and config.json does not say so."""
    if name in stored:
        return
    scope = name.removesuffix(".weight")
    if weight_format is None:
        for marker in (f"{scope}.{each}" for each in MARKERS):
            if marker in stored:
                raise ModelError(
                    f"{folder / 'config.json'}: quantization_config is missing, but the weights have {marker}"
                )
    if name == "lm_head.weight":
        raise ModelError(
            f"{folder}: tensor {name} is missing and tie_word_embeddings is false: the weights are incomplete"
        )


def _check_tables(folder: Path, config: ModelConfig, max_model_len: int, weight_bytes: int) -> None:
    """Raise ModelError if tables of `max_model_len` positions would be larger than the weights."""
    if config.rope is None:  # position embeddings are weights
        return
    position_bytes = 2 * 4 * config.head_dim  # cosine and sine in float32
    room = max(ROTARY_BYTES, weight_bytes)
    if max_model_len * position_bytes > room:
        raise ModelError(
            f"{folder / 'config.json'}: {max_model_len} positions need tables of {max_model_len * position_bytes} "
            f"bytes, more than the weights have: set --max-model-len to at most {room // position_bytes}"
        )


def main(argv: list[str]) -> int:
    """Check the folder of the command line; return exit code 0, or 2 if the model is invalid."""
    parser = argparse.ArgumentParser(
        prog="orca_worker.model_check", description="Checks a model's folder without loading its weights."
    )
    parser.add_argument("folder", type=Path, help="folder with config.json and safetensors files")
    parser.add_argument("-pp", type=int, default=1, help="pipeline-parallel size (1)")
    parser.add_argument("-tp", type=int, default=1, help="tensor-parallel size (1)")
    parser.add_argument("--max-model-len", type=int, default=0, help="maximum sequence length (config.json's)")
    parser.add_argument("--quantization", choices=get_args(Quantization), default="none", help="see orca serve (none)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="see orca serve (cpu)")
    parser.add_argument("--adapter", action="append", default=[], help="NAME=FOLDER of an adapter, repeatable (none)")
    arguments = parser.parse_args(argv)
    adapters = [
        pb.Adapter(name=name, path=path) for name, _, path in (text.partition("=") for text in arguments.adapter)
    ]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        check_model(
            arguments.folder,
            arguments.pp,
            arguments.tp,
            arguments.max_model_len,
            range(arguments.pp),
            arguments.quantization,
            arguments.device,
            adapters,
        )
    except ModelError as error:
        print(one_line(str(error)), file=sys.stderr)
        return 2
    except MemoryError:
        print(f"{arguments.folder}: checking the files needs more than {MEMORY_BYTES >> 20} MiB", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
