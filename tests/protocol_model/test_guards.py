"""The model can fail: without any single rule of the protocol, the search finds a way to violate an invariant."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from protocol_model.checker import explore
from protocol_model.invariants import INVARIANTS
from protocol_model.names import (
    EPOCHS_RISE,
    EVERY_REQUEST_ENDS,
    IN_ORDER,
    NO_OLD_EPOCH,
    NO_STALE_ROW,
    NOTHING_LOST,
    ONCE_IN_ORDER,
    ONE_MASTER,
    RECORDED_FIRST,
    RIGHT_TOKENS,
    ROWS_FREED,
)
from protocol_model.protocol import Protocol
from protocol_model.state import Bounds, Guard

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
RULE = re.compile(r"^\| ([A-Z][^|]+?) \| (`[^|]+`) \| ([^|]+?) \|$", re.MULTILINE)
ONE_CRASH, TWO_CRASHES = Bounds(crashes=1, anomalies=0), Bounds(crashes=2, anomalies=0)
ONE_ANOMALY = Bounds(crashes=0, anomalies=1)
VIOLATED = {
    Guard.WORKER_EPOCH: (NO_OLD_EPOCH, ONE_CRASH),
    Guard.PREPARE_EPOCH: (EPOCHS_RISE, ONE_CRASH),
    Guard.FORM_EPOCH: (EPOCHS_RISE, ONE_CRASH),
    Guard.FORM_ONCE: (EPOCHS_RISE, ONE_ANOMALY),
    Guard.WORKER_SEQUENCE: (IN_ORDER, ONE_ANOMALY),
    Guard.RESULT_EPOCH: (RIGHT_TOKENS, ONE_CRASH),
    Guard.RESULT_SEQUENCE: (RIGHT_TOKENS, ONE_ANOMALY),
    Guard.INCARNATION: (NO_STALE_ROW, ONE_ANOMALY),
    Guard.OWN_EPOCH: (RIGHT_TOKENS, TWO_CRASHES),
    Guard.REWIND: (NO_STALE_ROW, ONE_CRASH),
    Guard.LOSS: (EVERY_REQUEST_ENDS, ONE_CRASH),
    Guard.RELEASE: (ROWS_FREED, ONE_CRASH),
    Guard.ACCEPT: (RECORDED_FIRST, ONE_CRASH),
    Guard.FLUSH: (RECORDED_FIRST, ONE_CRASH),
    Guard.REMEMBER: (NOTHING_LOST, ONE_CRASH),
    Guard.RESUME: (EVERY_REQUEST_ENDS, ONE_CRASH),
    Guard.RECORDED_TOKENS: (ONCE_IN_ORDER, ONE_CRASH),
    Guard.LAST_EVENT: (ONCE_IN_ORDER, ONE_CRASH),
    Guard.LOCK: (ONE_MASTER, ONE_CRASH),
}


@pytest.mark.parametrize("guard", Guard, ids=lambda guard: guard.name)
def test_without_a_rule_its_invariant_is_violated(guard: Guard) -> None:
    violated, bounds = VIOLATED[guard]
    outcome = explore(Protocol(bounds, frozenset({guard})))
    print(outcome)
    assert outcome.violated == violated, str(outcome)
    assert outcome.steps


def test_each_invariant_is_violated_without_some_rule() -> None:
    assert {violated for violated, _ in VIOLATED.values()} == set(INVARIANTS)


def test_the_page_has_every_invariant_and_every_rule_with_the_invariant_that_depends_on_it() -> None:
    invariants = set(re.findall(r"^\| \*\*(.+?)\*\* \| .+ \|$", PAGE, re.MULTILINE))
    assert invariants == set(INVARIANTS)
    assert [(rule, violated) for rule, _, violated in RULE.findall(PAGE)] == [
        (guard.value, VIOLATED[guard][0]) for guard in Guard
    ]


def test_the_code_that_the_page_names_exists() -> None:
    known = {
        name
        for folder in ("master/orca_master", "worker/orca_worker")
        for path in (ROOT / folder).rglob("*.py")
        for name in definitions(path)
    }
    named = {name for _, code, _ in RULE.findall(PAGE) for name in re.findall(r"`(.+?)`", code)}
    assert named
    assert named - known == set()


def definitions(path: Path) -> Iterator[str]:
    """Yield the names of a module's classes and functions, also as CLASS.METHOD and MODULE.FUNCTION."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
            yield from (
                f"{node.name}.{member.name}"
                for member in node.body
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (node.name, f"{path.stem}.{node.name}")
