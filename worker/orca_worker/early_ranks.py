"""Early ranks: those that a worker starts before a master's first Load, so that they import torch meanwhile.

`orca serve`, which knows its workers' places on the machine, passes them to `orca worker --start-ranks`. A Load with
another setting ends these ranks and starts its own.
"""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Sequence
from typing import cast

from orca_contract.model_choices import Backend, Device, backend_of, backend_refusal

from orca_worker.rank_start import RankPlaces, RankStart, StartedRank, start_rank

PATTERN = re.compile(r"(\d{1,4}):(\d{1,4}):(\d{1,4}):(cpu|cuda)(?::(gloo|nccl))?", re.ASCII)

logger = logging.getLogger(__name__)


def rank_places(text: str) -> RankPlaces:
    """Convert COUNT:FIRST:TOTAL:DEVICE[:BACKEND] (argparse type). The ranks communicate over the loopback interface."""
    match = PATTERN.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: COUNT:FIRST:TOTAL:DEVICE[:BACKEND] is expected, such as 1:0:1:cpu")
    count, first, total = map(int, match.groups()[:3])
    if count == 0 or first % count or total % count or first >= total:
        raise argparse.ArgumentTypeError(f"{text!r}: FIRST and TOTAL must be multiples of COUNT, FIRST < TOTAL")
    device = cast("Device", match[4])
    backend = cast("Backend", match[5] or backend_of(device))
    if refusal := backend_refusal(device, backend):
        raise argparse.ArgumentTypeError(f"{text!r}: {refusal}")
    return RankPlaces(count, first, total, device, backend, "lo")


def start_ranks(starts: Sequence[RankStart]) -> list[tuple[RankStart, StartedRank]]:
    """Start a process for each of `starts`, as far as the system allows: the first Load starts the others."""
    started: list[tuple[RankStart, StartedRank]] = []
    try:
        for start in starts:
            started.append((start, start_rank(start)))
    except OSError as error:
        logger.info("no more ranks are started before the first Load: %s", error)
    return started
