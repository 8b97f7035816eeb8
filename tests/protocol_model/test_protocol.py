"""Every invariant of docs/protocol.md holds in every state that the protocol can reach within the bounds."""

from __future__ import annotations

import pytest
from protocol_model.checker import explore
from protocol_model.names import ONCE_IN_ORDER
from protocol_model.protocol import Protocol
from protocol_model.state import Bounds

SHORT = [
    (Bounds(crashes=0, anomalies=2), 16_000),
    (Bounds(crashes=1, anomalies=0, num_tokens=3), 9_000),
    (Bounds(crashes=1, anomalies=0, machine=True, rounding=False), 7_000),
    (Bounds(crashes=1, anomalies=0, prompt_length=3, token_budget=1, has_spare=True), 8_000),
    (Bounds(crashes=0, anomalies=1, prompt_length=3, token_budget=1, has_spare=True), 7_000),
]
LONG = [
    (Bounds(crashes=2, anomalies=0), 40_000),
]
EXHAUSTIVE = [
    (Bounds(crashes=2, anomalies=1), 600_000),
    (Bounds(crashes=2, anomalies=0, num_tokens=3), 150_000),
    (Bounds(crashes=1, anomalies=1, num_tokens=3), 180_000),
    (Bounds(crashes=2, anomalies=0, machine=True, rounding=False), 100_000),
    (Bounds(crashes=1, anomalies=1, prompt_length=3, token_budget=1, has_spare=True), 160_000),
    (Bounds(crashes=2, anomalies=0, prompt_length=3, token_budget=1, has_spare=True), 100_000),
    (Bounds(num_requests=3, crashes=1, anomalies=0, token_budget=1, has_spare=True), 29_000),
]
"""Bounds, and a number of states that a search within them exceeds: fewer show that steps are missing."""


def name(bounds: Bounds) -> str:
    """Return the id of a test with these bounds."""
    dies = "-machine" if bounds.machine else ""
    parts = f"-{bounds.num_requests}-requests-in-parts" if bounds.token_budget else ""
    return f"{bounds.crashes}-crashes-{bounds.anomalies}-anomalies-{bounds.num_tokens}-tokens{dies}{parts}"


@pytest.mark.timeout(1800)  # the full bounds: 50 s of processor time and 800 MB
@pytest.mark.parametrize(
    ("bounds", "num_states"),
    [
        *(pytest.param(*entry, id=name(entry[0])) for entry in SHORT),
        *(pytest.param(*entry, id=name(entry[0]), marks=pytest.mark.long) for entry in LONG),
        *(pytest.param(*entry, id=name(entry[0]), marks=pytest.mark.exhaustive) for entry in EXHAUSTIVE),
    ],
)
def test_all_invariants_hold_in_every_state(bounds: Bounds, num_states: int) -> None:
    outcome = explore(Protocol(bounds))
    print(f"{bounds}: {outcome}")
    assert not outcome.violated, str(outcome)
    assert outcome.num_states > num_states


def test_after_the_death_of_the_machine_bfloat16_tokens_may_differ_from_those_received() -> None:
    """The limit that docs/how-to/resume.md names: the journal on the disk may lack the last tokens of a client."""
    outcome = explore(Protocol(Bounds(crashes=1, anomalies=0, machine=True, rounding=True)))
    assert outcome.violated == ONCE_IN_ORDER, str(outcome)


def test_a_search_beyond_the_maximum_number_of_states_ends() -> None:
    with pytest.raises(ValueError, match="more than 100 states: smaller bounds are needed"):
        explore(Protocol(Bounds(crashes=1)), max_states=100)
