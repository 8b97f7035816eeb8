"""Which environment variables a rank process takes from a topology: names that tune a library, none that loads code.

The values travel from an OrcaDeployment (`spec.communication.env`) or topology.json through the master into `Load`.
Whoever may write there must not get a command run or a file written as the worker's user, so only the settings of the
communication and OpenMP libraries pass, and of those none whose name says that the value is a file, a folder or a
library, or an address to listen on. The operator, the master and the worker each check the same list. The worker's own
environment is free.
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
"""Words after which the value names something to load, to read or to write: NCCL_NET_PLUGIN, OMP_TOOL_LIBRARIES, …

GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY is the file of a private key.
"""
LISTENS = ("NCCL_COMM_ID", "NCCL_RAS_ADDR")
"""Names whose value is an address that a rank would listen on."""
NAMES_NOTHING = (
    *("NCCL_IB_PKEY", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN"),
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
)
"""Names that have such a word, but numbers and switches as values: an InfiniBand partition key, for one."""
ALLOWED = rf"^({'|'.join(LIBRARIES)})_[A-Z0-9_]+$"
REFUSED = rf"_({'|'.join(REFUSED_WORDS)})(_|$)|^({'|'.join(LISTENS)})$"
EXCEPTED = rf"^({'|'.join(NAMES_NOTHING)})$"
"""Allowed although REFUSED matches."""
WORDS = (
    f"may set {', '.join(f'{library}_*' for library in LIBRARIES)}, but no name with a word for a file, a folder, a "
    "library, an output or a secret (FILE, DIR, PLUGIN, DUMP, LOG, PKEY; a few numbers and switches such as "
    f"NCCL_IB_PKEY are excepted), and no address to listen on ({', '.join(LISTENS)}); set other variables for the "
    "whole worker"
)
"""What a refusal says about the field; the name of the variable comes before it."""
MAX_VARIABLES = 64
MAX_VALUE_LENGTH = 4096


def is_allowed(name: str) -> bool:
    """Whether a rank process takes a variable of this name."""
    if re.search(rf"{ALLOWED[:-1]}\Z", name) is None:
        return False
    return re.search(EXCEPTED, name) is not None or re.search(REFUSED, name) is None


def refusal(environment: Mapping[str, str]) -> str:
    """Return why an environment is refused, beginning with the variable to blame; empty if it is allowed."""
    if len(environment) > MAX_VARIABLES:
        return f"{len(environment)} variables: {MAX_VARIABLES} at most"
    for name, value in environment.items():
        if not is_allowed(name):
            return f"{name[:80]!r} is refused: the environment of rank processes {WORDS}"
        if "\0" in value or len(value) > MAX_VALUE_LENGTH:
            return f"{name[:80]}: the value must have at most {MAX_VALUE_LENGTH} characters and no zero byte"
    return ""
