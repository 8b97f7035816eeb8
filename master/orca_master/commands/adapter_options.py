"""The option for adapters that are loaded while the server runs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def add_adapter_options(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--enable-runtime-adapters",
        type=_folder,
        metavar="DIR",
        help="load adapters (LoRA) below this folder on request, /v1/load_lora_adapter, while the server runs (none)",
    )


def _folder(text: str) -> Path:
    """Return an absolute path. The workers check that they have the folder, which a master may lack."""
    if not text:
        raise argparse.ArgumentTypeError("a folder is expected")
    return Path(os.path.abspath(text))
