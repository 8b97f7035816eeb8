"""Threads and cores of ranks: never more than the affinity mask and the CPU quota allow together."""

from __future__ import annotations

import os

import pytest
from orca_worker.cores import SPINS, THREADS, Processors, RankSetting, rank_setting


def settings(cores: int, quota: float | None, num_ranks: int, may_pin: bool) -> list[RankSetting]:
    processors = Processors(set(range(cores)), quota)
    return [rank_setting(processors, rank, num_ranks, may_pin, {}) for rank in range(num_ranks)]


def threads(found: list[RankSetting]) -> list[int]:
    return [int(setting.environment[THREADS]) for setting in found]


@pytest.mark.parametrize(
    ("cores", "quota", "num_ranks", "expected"),
    [
        (64, None, 1, [64]),
        (64, 1.0, 1, [1]),
        (64, 1.5, 1, [2]),
        (64, 0.2, 1, [1]),
        (2, 8.0, 1, [2]),
        (64, 8.0, 2, [4, 4]),
        (64, 3.0, 2, [2, 1]),
        (64, 2.5, 8, [1] * 8),
        (8, None, 3, [3, 3, 2]),
        (7, None, 2, [4, 3]),
        (2, None, 4, [1, 1, 1, 1]),
    ],
)
def test_ranks_share_the_threads_that_mask_and_quota_allow(cores, quota, num_ranks, expected):
    for may_pin in (False, True):
        assert threads(settings(cores, quota, num_ranks, may_pin)) == expected


@pytest.mark.parametrize(
    ("cores", "num_ranks", "expected"),
    [
        (8, 1, [(0, 1, 2, 3, 4, 5, 6, 7)]),
        (8, 2, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (7, 3, [(0, 1, 2), (3, 4), (5, 6)]),
        (2, 2, [(0,), (1,)]),
        (2, 4, [(), (), (), ()]),
    ],
)
def test_pinned_ranks_have_cores_apart_and_a_thread_for_each(cores, num_ranks, expected):
    found = settings(cores, None, num_ranks, may_pin=True)
    assert [setting.cores for setting in found] == expected
    assert all(
        not setting.cores or len(setting.cores) == count for setting, count in zip(found, threads(found), strict=True)
    )


TWO_NODES = {0: {0, 1, 4, 5}, 1: {2, 3, 6, 7}}
"""Hyperthreads have the numbers after all cores."""


@pytest.mark.parametrize(
    ("affinity", "num_ranks", "expected", "places"),
    [
        (range(8), 1, [(0, 1, 4, 5, 2, 3, 6, 7)], ["nodes 0,1"]),
        (range(8), 2, [(0, 1, 4, 5), (2, 3, 6, 7)], ["node 0", "node 1"]),
        (range(8), 4, [(0, 1), (4, 5), (2, 3), (6, 7)], ["node 0", "node 0", "node 1", "node 1"]),
        ((1, 2, 5, 6), 2, [(1, 5), (2, 6)], ["node 0", "node 1"]),
    ],
)
def test_a_pinned_rank_has_the_cores_of_as_few_nodes_as_possible(affinity, num_ranks, expected, places):
    processors = Processors(set(affinity), None, TWO_NODES)
    found = [rank_setting(processors, rank, num_ranks, True, {}) for rank in range(num_ranks)]
    assert [setting.cores for setting in found] == expected
    for setting, place in zip(found, places, strict=True):
        assert f" of NUMA {place} (" in setting.description


def test_cores_in_no_node_come_first_and_are_not_lost():
    assert Processors({0, 1, 9}, None, {0: {0, 1}}).by_node == [9, 0, 1]


def test_nothing_is_pinned_that_shares_its_cores():
    """Under a quota the threads of other containers are on the same cores; so are other pods' on a node."""
    assert [setting.cores for setting in settings(8, 4.0, 2, may_pin=True)] == [(), ()]
    assert [setting.cores for setting in settings(8, None, 2, may_pin=False)] == [(), ()]


def test_the_user_wins():
    found = rank_setting(Processors({0, 1}, 1.0), 0, 1, True, {THREADS: "7"})
    assert (found.environment, found.cores, found.description) == (SPINS, (), "OMP_NUM_THREADS=7 is set")


@pytest.mark.parametrize("variable", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_how_idle_threads_wait_is_left_to_a_user_who_says_it(variable):
    assert SPINS.items() <= rank_setting(Processors({0, 1}, None), 0, 1, True, {}).environment.items()
    found = rank_setting(Processors({0, 1}, None), 0, 1, True, {variable: "active"})
    assert found.environment == {THREADS: "2"}


@pytest.mark.parametrize(
    ("cores", "quota", "num_ranks", "may_pin", "words"),
    [
        (64, 1.5, 1, False, "2 threads (affinity 64 cores, CPU quota 1.5, 1 rank)"),
        (1, None, 2, True, "1 thread (affinity 1 core, no CPU quota, 2 ranks)"),
        (4, None, 2, True, "2 threads on cores 0,1 (affinity 4 cores, no CPU quota, 2 ranks)"),
    ],
)
def test_the_log_line_has_the_numbers(cores, quota, num_ranks, may_pin, words):
    assert settings(cores, quota, num_ranks, may_pin)[0].description == words


def test_this_process_has_processors():
    found = Processors.of_this_process()
    assert found.affinity == os.sched_getaffinity(0)
    assert sorted(found.by_node) == sorted(found.affinity)
    assert 1 <= found.threads <= len(found.affinity)
