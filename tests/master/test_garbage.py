"""Full garbage collections take a bounded share of a serving process's time."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from orca_master.garbage import LONGEST_SECONDS, NEVER, SHARE, FullCollections


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def collect(collections: FullCollections, clock: Clock, generation: int, seconds: float) -> None:
    info = {"generation": generation, "collected": 0, "uncollectable": 0}
    collections("start", info)
    clock.seconds += seconds
    collections("stop", info)


def test_full_collections_wait_in_proportion_to_the_time_that_the_last_one_took(thresholds):
    clock = Clock()
    collections = FullCollections(clock)
    collect(collections, clock, generation=2, seconds=0.5)
    assert gc.get_threshold() == (*thresholds[:2], NEVER)
    for generation in (0, 1):
        collect(collections, clock, generation, seconds=0.4 / SHARE / 2)
        assert gc.get_threshold() == (*thresholds[:2], NEVER)
    collect(collections, clock, generation=0, seconds=0.2 / SHARE)
    assert gc.get_threshold() == thresholds
    collect(collections, clock, generation=2, seconds=0.001)
    assert gc.get_threshold() == (*thresholds[:2], NEVER)


def test_the_wait_is_bounded(thresholds):
    clock = Clock()
    collections = FullCollections(clock)
    collect(collections, clock, generation=2, seconds=10.0)
    collect(collections, clock, generation=1, seconds=LONGEST_SECONDS - 1)
    assert gc.get_threshold() == (*thresholds[:2], NEVER)
    collect(collections, clock, generation=1, seconds=1.0)
    assert gc.get_threshold() == thresholds


def test_young_collections_change_nothing_before_the_first_full_one(thresholds):
    collect(FullCollections(Clock()), Clock(), generation=1, seconds=1.0)
    assert gc.get_threshold() == thresholds


def test_the_interpreter_calls_it(thresholds):
    collections = FullCollections()
    gc.callbacks.append(collections)
    try:
        gc.collect()
        assert gc.get_threshold() == (*thresholds[:2], NEVER)
    finally:
        gc.callbacks.remove(collections)
