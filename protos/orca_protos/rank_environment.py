"""Which environment variables a rank process takes from a topology: names that tune a library, none that loads code.

The values travel from an OrcaDeployment (`spec.communication.env`) or topology.json through the master into `Load`.
Whoever may write there must not get a command run or a file written as the worker's user, so only the settings of the
communication and OpenMP libraries pass, and of those none whose name says that the value is a file, a folder or a
library. The operator, the master and the worker each check the same list. The worker's own environment is free.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LIBRARIES = ("GLOO", "GOMP", "KMP", "MKL", "NCCL", "OMP", "TORCH_NCCL")
"""First words of the names: gloo, GNU OpenMP, LLVM and Intel OpenMP, MKL, NCCL, OpenMP, torch's use of NCCL."""
REFUSED_WORDS = (
    *("CA", "CERT", "COMMAND", "CONF", "CONFIG", "DEST", "DIR", "DUMP", "FILE", "FILENAME", "FOLDER", "LIB"),
    *("LIBRARIES", "LIBRARY", "LOG", "MODULE", "MODULES", "OUTPUT", "PATH", "PIPE", "PKEY", "PLUGIN", "PLUGINS"),
    *("PREFIX", "STATS", "TEMP", "TOOL", "TRACE"),
)
"""Words after which the value names something to load, to read or to write: NCCL_NET_PLUGIN, OMP_TOOL_LIBRARIES, …"""
ALLOWED = rf"^({'|'.join(LIBRARIES)})_[A-Z0-9_]+$"
REFUSED = rf"_({'|'.join(REFUSED_WORDS)})(_|$)"
WORDS = (
    f"may set {', '.join(f'{library}_*' for library in LIBRARIES)}, but nothing that names a file or a library to "
    "load; set other variables for the whole worker"
)
"""What a refusal says about the field; the name of the variable comes before it."""
MAX_VARIABLES = 64
MAX_VALUE_LENGTH = 4096


def is_allowed(name: str) -> bool:
    """Whether a rank process takes a variable of this name."""
    return re.search(rf"{ALLOWED[:-1]}\Z", name) is not None and re.search(REFUSED, name) is None


def refusal(environment: Mapping[str, str]) -> str:
    """Returns why an environment is refused, beginning with the variable to blame; empty if it is allowed."""
    if len(environment) > MAX_VARIABLES:
        return f"{len(environment)} variables: {MAX_VARIABLES} at most"
    for name, value in environment.items():
        if not is_allowed(name):
            return f"{name[:80]!r} is refused: the environment of rank processes {WORDS}"
        if "\0" in value or len(value) > MAX_VALUE_LENGTH:
            return f"{name[:80]}: the value must have at most {MAX_VALUE_LENGTH} characters and no zero byte"
    return ""
