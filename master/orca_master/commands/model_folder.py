"""`model_folder`: the folder of a model that a user names, and what to do if the name is that of a model of a hub."""

from __future__ import annotations

import re
from pathlib import Path

from orca_protos.model_files import FileError, MissingFileError, regular_file

from orca_master.errors import ConfigurationError

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
"""ORGANISATION/NAME."""


def model_folder(name: str | Path) -> Path:
    """Return the resolved model directory; raise ConfigurationError if it has no config.json that can be opened."""
    try:
        folder = Path(name).resolve()
        regular_file(folder, "config.json")
    except MissingFileError as error:
        raise ConfigurationError(f"{name}: no config.json: {_way_out(str(name))}") from error
    except FileError as error:
        raise ConfigurationError(str(error)) from error
    except RuntimeError as error:  # a cycle of symbolic links, before Python 3.13
        raise ConfigurationError(f"{name}: {error}") from error
    return folder


def _way_out(name: str) -> str:
    uri = f"hf://{name}" if HUB_NAME.fullmatch(name) else name
    if uri.startswith(("hf://", "s3://")) and not Path(name).exists():
        return f"download the model first, orca fetch {uri} --into DIR, and give DIR"
    return "a Hugging Face model directory is expected"
