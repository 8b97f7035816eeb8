"""Reads topology.json, the file for `orca master --topology` (docs/contracts.md, section 1)."""

from __future__ import annotations

import logging
from pathlib import Path

from orca_contract.message import UnknownFields, read
from orca_contract.topology import Topology

from orca_master.errors import ConfigurationError

logger = logging.getLogger(__name__)


def read_topology(path: Path) -> Topology:
    """Read topology.json; raise ConfigurationError with the first invalid field."""
    try:
        topology, unknown = read(Topology, path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"--topology {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"--topology {path}: {error}") from error
    if not topology.pipelines:
        raise ConfigurationError(f"--topology {path}: pipelines: a master starts with at least one pipeline")
    if refusal := topology.refusal():
        raise ConfigurationError(f"--topology {path}: {refusal}")
    UnknownFields(logger).log(f"--topology {path}", unknown)
    return topology
