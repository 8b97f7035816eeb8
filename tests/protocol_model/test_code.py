"""Scheduler, requests and journal agree with the model, over random walks: the model is of this code."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from protocol_model.protocol import Protocol, Transition
from protocol_model.state import Bounds, Guard, State, Step
from protocol_model.twin import Twin

BOUNDS = Bounds(num_tokens=3, crashes=2, anomalies=2)
PARTS = Bounds(prompt_length=3, num_tokens=2, crashes=2, anomalies=2, token_budget=1, has_spare=True)
MAX_STEPS = 200
COVERED = {"loss", "kill", "preemption", "stale result", "resumed with tokens"}
"""Kinds of steps that the walks of a test must have made."""
COVERED_BY_PARTS = COVERED | {"parts of a prompt", "spare iteration"}


def next_step(protocol: Protocol, state: State, chance: random.Random) -> Transition | None:
    """Choose a step, a fault in one case of ten; None if only faults are left: all requests have ended."""
    steps = list(protocol.steps(state))
    faults = [entry for entry in steps if entry[0].fault]
    others = [entry for entry in steps if not entry[0].fault]
    if not others:
        return None
    return chance.choice(faults if faults and chance.random() < 0.1 else others)


def walk(protocol: Protocol, chance: random.Random, folder: Path) -> Counter[str]:
    """Make one walk in model and code; return what it has covered. AssertionError has the steps to a difference."""
    state, steps = protocol.initial(), list[Step]()
    twin = Twin(protocol.bounds, folder)
    try:
        while (transition := next_step(protocol, state, chance)) is not None:
            before, (step, state) = state, transition
            steps.append(step)
            assert len(steps) < MAX_STEPS, "the walk does not end"
            twin.follow(step, before, state)
    except AssertionError as error:
        way = "\n".join(f"  {number}. {step}" for number, step in enumerate(steps, 1))
        raise AssertionError(f"the code differs from the model: {error}\n{way}") from error
    finally:
        twin.close()
    assert protocol.is_final(state)
    return twin.covered


SEEDS = [(1, 40), pytest.param(2, 200, marks=pytest.mark.long), pytest.param(3, 200, marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize(("seed", "num_walks"), SEEDS)
def test_the_code_makes_every_step_of_random_walks(seed: int, num_walks: int, tmp_path: Path) -> None:
    assert {kind for kind, count in covered_by_walks(BOUNDS, seed, num_walks, tmp_path).items() if count} == COVERED


@pytest.mark.parametrize(("seed", "num_walks"), SEEDS)
def test_the_code_makes_every_step_with_parts_of_prompts(seed: int, num_walks: int, tmp_path: Path) -> None:
    covered = covered_by_walks(PARTS, seed, num_walks, tmp_path)
    assert {kind for kind, count in covered.items() if count} == COVERED_BY_PARTS


def covered_by_walks(bounds: Bounds, seed: int, num_walks: int, folder: Path) -> Counter[str]:
    """Return what random walks in model and code have covered."""
    print(f"seed {seed}")
    protocol, chance = Protocol(bounds), random.Random(seed)
    covered: Counter[str] = Counter()
    for number in range(num_walks):
        covered.update(walk(protocol, chance, folder / str(number)))
    print(dict(covered))
    return covered


@pytest.mark.parametrize(
    "guard",
    [Guard.INCARNATION, Guard.REWIND, Guard.RELEASE, Guard.RECORDED_TOKENS, Guard.REMEMBER],
    ids=lambda guard: guard.name,
)
def test_a_model_of_another_scheduler_or_journal_differs_from_the_code(guard: Guard, tmp_path: Path) -> None:
    protocol, chance = Protocol(BOUNDS, frozenset({guard})), random.Random(1)

    def walks() -> None:
        for number in range(200):
            walk(protocol, chance, tmp_path / str(number))

    with pytest.raises(AssertionError, match="the code differs from the model"):
        walks()
