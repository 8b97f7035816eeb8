"""Short forms of `make chaos`: faults under streams, and every stream is that of the undisturbed run."""

from __future__ import annotations

import asyncio
import random
import warnings

import pytest
from chaos.campaign import Campaign, serving
from chaos.faults import KINDS, Fault, combined, everywhere
from chaos.processes import cannot_cut

SLOW = ("rank stopped", "controller stopped")
"""Noticed after ten seconds of silence."""


def check(faults: list[Fault], partitions: int, ranks: int, num_streams: int, rng: random.Random) -> None:
    """Make the faults; without the right to cut connections, all others."""
    if reason := cannot_cut():
        warnings.warn(f"no connection is cut: {reason}", stacklevel=1)
        faults = [fault for fault in faults if " cut" not in fault.kind.name]
    with serving(partitions, ranks) as served:
        campaign = Campaign(served, partitions, ranks)
        asyncio.run(campaign.run(combined(faults, rng), num_streams, 250, rng))
        print(*campaign.report(), sep="\n")
        assert campaign.failures() == []
        assert campaign.tally.resumed, "the master was killed"
        assert not any("failed on it again" in line for line in served.log)


def seeded() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def test_faults_that_are_noticed_at_once():
    """One of each kind, somewhere."""
    rng = seeded()
    kinds = [kind for kind in KINDS if kind.name not in SLOW]
    check([Fault(kind, rng.randrange(kind.places(2))) for kind in kinds], 2, 1, 8, rng)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_kind_of_fault_everywhere():
    check(everywhere(2, 1), 2, 2, 15, seeded())
