"""Command-line options that `orca serve` and `orca master` share, and the types they check."""

from __future__ import annotations

import argparse

from orca_master.engine import EngineConfig
from orca_master.kv_ledger import BLOCK_SIZE


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options about the model."""
    parser.add_argument("--served-model-name", help="name in the API (default: the directory's)")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    parser.add_argument("--max-model-len", type=positive, help="longest sequence in tokens (default: the model's)")


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `orca serve` and `orca master` share."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=port, default=8000, help="port to listen on (default: 8000)")
    parser.add_argument("--max-batch-size", type=positive, default=32, help="requests per iteration (default: 32)")
    parser.add_argument(
        "--token-budget",
        type=positive,
        default=2048,
        help="input tokens per iteration; longer prompts are computed in chunks (default: 2048)",
    )
    parser.add_argument(
        "--kv-slots",
        type=slots,
        help=f"K/V slots, one per token, rounded down to blocks of {BLOCK_SIZE} (default: what fits and can be used)",
    )
    parser.add_argument("--no-balanced-batches", action="store_true", help="Algorithm 1 to the letter")
    parser.add_argument("--stall-timeout", type=positive, default=300, help="seconds an iteration may take (300)")


def engine_config(arguments: argparse.Namespace) -> EngineConfig:
    """Returns the engine's part of the options."""
    return EngineConfig(
        max_batch_size=arguments.max_batch_size,
        token_budget=arguments.token_budget,
        balanced=not arguments.no_balanced_batches,
        kv_slots=arguments.kv_slots,
        stall_timeout=arguments.stall_timeout,
    )


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def slots(text: str) -> int:
    """At least one block of slots."""
    number = positive(text)
    if number < BLOCK_SIZE:
        raise argparse.ArgumentTypeError(f"{number} is less than one block of {BLOCK_SIZE} slots")
    return number


def port(text: str) -> int:
    """A TCP port; 0 lets the kernel choose."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)
