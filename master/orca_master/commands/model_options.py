"""Command-line options about the model, shared by `orca serve` and `orca master`. Names follow vLLM."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from orca_contract.model_choices import (
    MAX_NAME_LENGTH,
    Device,
    Dtype,
    KvCacheDtype,
    PoolingChoice,
    Quantization,
    kv_cache_refusal,
    quantization_refusal,
)

from orca_master.commands.adapter_options import add_adapter_options
from orca_master.commands.argument_types import num_tokens, positive, utf8_text
from orca_master.errors import ConfigurationError
from orca_master.text.reasoning import REASONING_FORMATS
from orca_master.text.tool_calls import FORMATS

if TYPE_CHECKING:  # imports pydantic, which takes a tenth of a second
    from orca_contract.topology import ModelSpec


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about the model."""
    parser.add_argument(
        "--served-model-name",
        type=_name,
        action="append",
        nargs="+",
        metavar="NAME",
        help="names of the model in the API, repeatable; responses contain the first (the directory's name)",
    )
    parser.add_argument(
        "--dtype",
        choices=get_args(Dtype),
        default="auto",
        help="type of weights and activations (auto: the checkpoint's)",
    )
    parser.add_argument(
        "--quantization",
        choices=get_args(Quantization),
        default="none",
        help="quantization while the weights are loaded, on CPUs: weights as integers of eight or four bits, with a "
        "scale per output and 128 inputs; or activations, too: (w8a8) weights and activations of eight bits, with a "
        "scale per output and per token, (w4a8) weights of four bits as with int4, activations of eight, with a scale "
        "per token and group of inputs; for a checkpoint that is quantised already only w4a8, if its weights have "
        "four bits (none)",
    )
    parser.add_argument(
        "--kv-cache-dtype",
        choices=get_args(KvCacheDtype),
        default="auto",
        help="type of cached keys and values: that of the activations, or int8 on CPUs: integers with a scale per "
        "token and K/V head, so that more tokens fit (auto)",
    )
    parser.add_argument(
        "--max-model-len", type=num_tokens, help="maximum tokens of prompt and completion together (the model's)"
    )
    parser.add_argument(
        "--tensor-parallel-size",
        "-tp",
        type=positive,
        default=1,
        help="tensor-parallel ranks of each worker, one process each (1)",
    )
    parser.add_argument("--chat-template", type=Path, metavar="FILE", help="Jinja chat template (the model's)")
    parser.add_argument(
        "--lora-modules",
        type=_adapter,
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME=DIR",
        help="adapters (LoRA) in PEFT's format, repeatable: requests choose one by its name as the model (none)",
    )
    add_adapter_options(parser)
    parser.add_argument(
        "--speculative-model",
        type=_folder,
        metavar="DIR",
        help="speculative decoding: a smaller model with the same tokens, which drafts what --speculative-tokens "
        "allows in place of the repetitions of prompt and answer; answers stay the same (none)",
    )
    parser.add_argument(
        "--embedding-pooling",
        choices=get_args(PoolingChoice),
        default="auto",
        help="activations of which an embedding of /v1/embeddings is the mean: those of the last token, or of all "
        "tokens; auto: as sentence-transformers' files beside the model say, else of the last token (auto)",
    )
    parser.add_argument(
        "--tool-call-parser",
        choices=("auto", *FORMATS, "none"),
        default="auto",
        help="format in which the model calls functions; auto: that of its chat template (auto)",
    )
    parser.add_argument(
        "--reasoning-parser",
        choices=(*REASONING_FORMATS, "none"),
        default="none",
        help="format in which the model reasons before it answers; reasoning becomes the field reasoning (none)",
    )


def _name(text: str) -> str:
    """Return a name of the model, which JSON and metrics can contain."""
    if not text:
        raise argparse.ArgumentTypeError("a name is empty")
    return utf8_text(text)


def _adapter(text: str) -> tuple[str, Path]:
    """Return name and folder of NAME=DIR."""
    name, separator, folder = text.partition("=")
    if not (name and separator and folder):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=DIR")
    if len(name) > MAX_NAME_LENGTH:
        raise argparse.ArgumentTypeError(f"a name of {len(name)} characters, at most {MAX_NAME_LENGTH} are possible")
    return name, _folder(folder)


def _folder(text: str) -> Path:
    """Return the absolute path of a directory."""
    if not text:
        raise argparse.ArgumentTypeError("a directory is expected")
    return Path(os.path.abspath(text))  # follows no links: a cycle of them is an error


def check_model_options(arguments: argparse.Namespace, device: Device) -> None:
    """Raise ConfigurationError for an option that workers on the device refuse, or that needs another one."""
    if refusal := quantization_refusal(arguments.quantization, device):
        raise ConfigurationError(f"--quantization {refusal}")
    if refusal := kv_cache_refusal(arguments.kv_cache_dtype, device):
        raise ConfigurationError(f"--kv-cache-dtype {refusal}")
    if arguments.speculative_model is not None and not arguments.speculative_tokens:
        raise ConfigurationError("--speculative-model: set --speculative-tokens N, the most tokens to draft")


def model_spec(arguments: argparse.Namespace, path: str, served_name: str, device: Device) -> ModelSpec:
    """Return the model of these options; raise ConfigurationError."""
    from orca_contract.topology import ModelSpec
    from pydantic import ValidationError

    check_model_options(arguments, device)
    try:
        return ModelSpec.model_validate(
            {
                "path": path,
                "served_name": served_name,
                "dtype": arguments.dtype,
                "max_model_len": arguments.max_model_len,
                "quantization": arguments.quantization,
                "kv_cache_dtype": arguments.kv_cache_dtype,
                "adapters": [{"name": name, "path": str(folder)} for name, folder in arguments.lora_modules],
                "draft_path": arguments.speculative_model and str(arguments.speculative_model),
            }
        )
    except ValidationError as error:  # argparse has checked the other fields
        first = error.errors()[0]
        options: dict[int | str, str] = {"adapters": "--lora-modules", "draft_path": "--speculative-model"}
        option = options.get(first["loc"][0], "--model")
        raise ConfigurationError(f"{option}: {first['msg']}") from error
