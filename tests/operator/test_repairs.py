"""How long a repair waits, by the repairs before it."""

from __future__ import annotations

import pytest
from orca_operator import repairs
from orca_operator.repairs import IMMEDIATE, PAUSE_SECONDS, SETTLED_SECONDS, Repairs

PLACE = ("Service", "demo")
FIRST, LONGEST = PAUSE_SECONDS


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """Return a list whose only element is the time."""
    now = [100.0]
    monkeypatch.setattr(repairs, "monotonic", lambda: now[0])
    return now


def test_the_first_repairs_are_immediate_and_the_pauses_double(clock):
    found, pauses = Repairs(), []
    for _ in range(IMMEDIATE + 9):
        begin = clock[0]
        while found.is_early(PLACE, "a"):
            clock[0] += 1
        pauses.append(clock[0] - begin)
        found.note(PLACE, "a")
    assert pauses == [0, 0, 0, 10, 20, 40, 80, 160, 320, 600, 600, 600]


def test_another_content_and_another_object_do_not_wait(clock):
    found = Repairs()
    for _ in range(IMMEDIATE):
        assert not found.disputes()
        found.note(PLACE, "a")
    assert found.is_early(PLACE, "a")
    assert found.disputes()[0].startswith("Service demo: another client")
    assert not found.is_early(PLACE, "b")
    assert not found.is_early(("Service", "other"), "a")
    found.note(PLACE, "b")
    assert not found.is_early(PLACE, "b")
    assert not found.disputes()


def test_a_dispute_ends_when_no_repair_was_needed_for_a_while(clock):
    found = Repairs()
    for _ in range(20):
        found.note(PLACE, "a")
    clock[0] += LONGEST
    assert not found.is_early(PLACE, "a")
    clock[0] += SETTLED_SECONDS - LONGEST
    assert found.disputes()[0].startswith("Service demo: another client")
    clock[0] += 1
    assert not found.disputes()
    found.note(PLACE, "a")
    assert not found.is_early(PLACE, "a")
