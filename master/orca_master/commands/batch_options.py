"""Options for the files and batches of /v1/files and /v1/batches (`BatchConfig`)."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

from orca_master.batches.config import BatchConfig
from orca_master.commands.argument_types import folder, num_bytes, positive, stall_seconds
from orca_master.errors import ConfigurationError

MOST_CONCURRENCY = 128
"""Half of what may wait for the chat template, a tokenizer's thread or a grammar (MAX_WAITING of each). Of large bodies
fewer may wait to be checked: more are sent again (429)."""
DEFAULTS = BatchConfig(Path())


def add_batch_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--batch-directory",
        type=folder,
        metavar="DIR",
        help="folder for the files and batches of /v1/files and /v1/batches, prompts and answers included: a restarted "
        "master continues the batches (none: no such routes)",
    )
    parser.add_argument(
        "--max-batch-files",
        type=positive,
        metavar="N",
        default=DEFAULTS.max_files,
        help="maximum files, those of answers included, and batches; half of one API key; 400 if exceeded "
        f"({DEFAULTS.max_files})",
    )
    parser.add_argument(
        "--max-batch-bytes",
        type=num_bytes,
        metavar="BYTES",
        default=DEFAULTS.max_bytes,
        help="maximum size of all files, half of one API key; 400 if exceeded, and answers of a batch wait for room "
        f"({DEFAULTS.max_bytes})",
    )
    parser.add_argument(
        "--batch-lifetime",
        type=stall_seconds,
        metavar="SECONDS",
        default=int(DEFAULTS.seconds),
        help=f"how long a file is kept after its creation, and a batch after its end ({DEFAULTS.seconds:.0f})",
    )
    parser.add_argument(
        "--max-batch-file-bytes",
        type=num_bytes,
        metavar="BYTES",
        default=DEFAULTS.max_file_bytes,
        help=f"maximum size of a file that is sent; 413 if exceeded ({DEFAULTS.max_file_bytes})",
    )
    parser.add_argument(
        "--max-batch-lines",
        type=positive,
        metavar="N",
        default=DEFAULTS.max_lines,
        help=f"maximum lines of a file that is sent; 400 if exceeded ({DEFAULTS.max_lines})",
    )
    parser.add_argument(
        "--max-batch-line-bytes",
        type=positive,
        metavar="BYTES",
        default=DEFAULTS.max_line_bytes,
        help=f"maximum size of a line; 400 if exceeded ({DEFAULTS.max_line_bytes})",
    )
    parser.add_argument(
        "--batch-concurrency",
        type=functools.partial(positive, most=MOST_CONCURRENCY),
        metavar="N",
        default=DEFAULTS.concurrency,
        help="choices (prompts x n) and embeddings of batches that are computed at a time, up to "
        f"{MOST_CONCURRENCY}; a line with more choices is refused ({DEFAULTS.concurrency})",
    )


def batch_config(arguments: argparse.Namespace) -> BatchConfig | None:
    """Return the options of batches, None without a folder; raise ConfigurationError."""
    if arguments.batch_directory is None:
        return None
    if arguments.api_processes:
        raise ConfigurationError("--batch-directory: does not work with --api-processes yet, remove one of them")
    return BatchConfig(
        arguments.batch_directory,
        arguments.max_batch_files,
        arguments.max_batch_bytes,
        float(arguments.batch_lifetime),
        arguments.max_batch_file_bytes,
        arguments.max_batch_lines,
        arguments.max_batch_line_bytes,
        arguments.batch_concurrency,
    )
