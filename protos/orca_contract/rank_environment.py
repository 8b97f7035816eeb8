"""The environment variables that a topology may set in rank processes: names that tune a library, none that load code.

The values come from an OrcaDeployment (`spec.communication.env`) or topology.json and reach the worker in `Load`. An
author of these must not be able to run a command or write a file as the worker's user, so only settings of the
communication and OpenMP libraries are allowed, except names whose value is a file, a folder, a library or a listen
address. Operator, master and worker check the same list. The worker's own environment is not restricted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LIBRARIES = ("GLOO", "GOMP", "KMP", "MKL", "NCCL", "OMP", "TORCH_NCCL")
"""Prefixes of the names: gloo, GNU OpenMP, LLVM and Intel OpenMP, MKL, NCCL, OpenMP, torch's use of NCCL."""
REFUSED_WORDS = (
    *("CA", "CERT", "COMMAND", "CONF", "CONFIG", "DEST", "DIR", "DUMP", "FILE", "FILENAME", "FOLDER", "LIB"),
    *("LIBRARIES", "LIBRARY", "LOG", "MODULE", "MODULES", "OUTPUT", "PATH", "PIPE", "PKEY", "PLUGIN", "PLUGINS"),
    *("PREFIX", "STATS", "TEMP", "TOOL", "TRACE"),
)
"""Words in names whose value is loaded, read or written: NCCL_NET_PLUGIN, OMP_TOOL_LIBRARIES, …

GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY is the file of a private key.
"""
LISTENS = ("NCCL_COMM_ID", "NCCL_RAS_ADDR")
"""Names whose value is a listen address."""
NAMES_NOTHING = (
    *("NCCL_IB_PKEY", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN"),
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
)
"""Names with a refused word whose values are numbers or switches, such as an InfiniBand partition key."""
ALLOWED = rf"^({'|'.join(LIBRARIES)})_[A-Z0-9_]+$"
REFUSED = rf"_({'|'.join(REFUSED_WORDS)})(_|$)|^({'|'.join(LISTENS)})$"
EXCEPTED = rf"^({'|'.join(NAMES_NOTHING)})$"
"""Allowed although REFUSED matches."""
WORDS = (
    f"may set {', '.join(f'{library}_*' for library in LIBRARIES)}, but no name with a word for a file, a folder, a "
    "library, an output or a secret (FILE, DIR, PLUGIN, DUMP, LOG, PKEY; a few numbers and switches such as "
    f"NCCL_IB_PKEY are excepted), and no listen address ({', '.join(LISTENS)}); set other variables for the "
    "whole worker"
)
"""The predicate of error messages, after the name of the field."""
MAX_VARIABLES = 64
MAX_VALUE_LENGTH = 4096


def is_allowed(name: str) -> bool:
    """Whether a topology may set a variable of this name."""
    if re.search(rf"{ALLOWED[:-1]}\Z", name) is None:
        return False
    return re.search(EXCEPTED, name) is not None or re.search(REFUSED, name) is None


def refusal(environment: Mapping[str, str]) -> str:
    """Return why an environment is rejected, beginning with the invalid variable; empty if it is allowed."""
    if len(environment) > MAX_VARIABLES:
        return f"{len(environment)} variables: at most {MAX_VARIABLES} are allowed"
    for name, value in environment.items():
        if not is_allowed(name):
            return f"{name[:80]!r} is refused: the environment of rank processes {WORDS}"
        if "\0" in value or len(value) > MAX_VALUE_LENGTH:
            return f"{name[:80]}: the value must have at most {MAX_VALUE_LENGTH} characters and no zero byte"
    return ""
