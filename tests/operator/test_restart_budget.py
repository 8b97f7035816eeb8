"""What counts as a restart of a pipeline, and in which window."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any

import pytest
from orca_operator.api import RecoveryPolicy
from orca_operator.restart_budget import NO_RESTARTS, Budget, begin_window, count, read_budget
from support.orcadeployments import MINIMAL, NOW, context, merged, pod

DEMO = context(merged(MINIMAL, parallelism={"pipelineParallelSize": 2}))
POLICY = RecoveryPolicy()
WINDOW = POLICY.restart_window_seconds


def worker(
    restarts: int = 0, partition: int = 0, uid: str = "a", ending: bool = False, **status: Any
) -> dict[str, Any]:
    container = {"name": "worker", "image": "i", "restartCount": restarts, "state": {"running": {}}}
    found = pod(DEMO, partition=partition, containerStatuses=[container], **status)
    found["metadata"] |= {"uid": uid} | ({"deletionTimestamp": "2026-01-01T12:00:00Z"} if ending else {})
    return found


def counted(*passes: list[dict[str, Any]], budget: Budget = NO_RESTARTS, now: datetime = NOW) -> Budget:
    """Return the budget after these passes, which a restarted operator reads from the status each time."""
    for pods in passes:
        budget = read_budget(count(budget, pods, now).entry())
    return budget


def test_a_rise_of_the_restart_count_within_one_pod_counts_once():
    found = counted([worker(0)], [worker(1)], [worker(1)], [worker(2)])
    assert (found.restarts, found.since) == (2, NOW)
    assert found.entry() == {
        "restarts": 2,
        "restartsSince": "2026-01-01T12:00:00Z",
        "restartedPods": [{"partition": 0, "uid": "a", "seen": 2, "counted": 2, "isReplaced": False}],
    }


def test_a_pod_that_replaces_another_one_is_no_restart():
    """An eviction, the upgrade of a node and `kubectl delete pod` end healthy pods."""
    assert counted(*([worker(0, uid=str(number))] for number in range(20))) == NO_RESTARTS
    found = counted([worker(3)], [worker(0, uid="b")], [worker(1, uid="b")])
    assert found.restarts == 2, "one of each pod"


DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]


@pytest.mark.parametrize(("conditions", "restarts"), [([], 1), (DISRUPTED, 0)], ids=["by itself", "disrupted"])
def test_a_pod_that_failed_by_itself_is_a_restart(conditions, restarts):
    """A node that rejects each pod (UnexpectedAdmissionError) ends pods whose containers never start."""
    failed = worker(0, phase="Failed", conditions=conditions)
    assert counted([worker(0)], [failed], [failed]).restarts == restarts


def test_a_pod_that_ends_and_a_lower_restart_count_are_no_restarts():
    assert counted([worker(0)], [worker(1, ending=True)]).restarts == 0
    assert counted([worker(4)], [worker(2)], [worker(2)]).restarts == 1
    assert counted([worker(4)], [worker(2)], [worker(3)]).restarts == 2


def test_other_containers_do_not_count():
    found = worker(0)
    found["status"]["containerStatuses"].append({"name": "sidecar", "image": "i", "restartCount": 9, "state": {}})
    assert counted([found]).restarts == 0


def test_a_pipeline_has_restarted_as_often_as_the_partition_with_the_most_restarts():
    """One failure may end the workers of all partitions."""
    both = [[worker(number, 0), worker(number, 1, uid="b")] for number in range(4)]
    assert counted(*both).restarts == 3
    assert counted(*both, [worker(3, 0), worker(4, 1, uid="b")]).restarts == 4


def test_restarts_while_no_operator_runs_count_once():
    assert counted([worker(0)], [worker(50)]).restarts == 1


@pytest.mark.parametrize(
    ("seconds", "restarts", "serves", "is_over"),
    [(WINDOW - 1, 1, True, False), (WINDOW, 1, False, True), (WINDOW, 11, False, False), (WINDOW, 11, True, True)],
    ids=["within", "over", "beyond the budget", "beyond the budget, but serves"],
)
def test_the_window_begins_with_the_first_restart_and_a_pipeline_beyond_its_budget_must_serve(
    seconds, restarts, serves, is_over
):
    found = counted(*([worker(number)] for number in range(restarts + 1)))
    after = begin_window(found, POLICY, serves, NOW + timedelta(seconds=seconds))
    assert (after.restarts == 0, after.since is None) == (is_over, is_over)
    assert after.entry().get("restarts") == (None if is_over else restarts), "nothing is left of a window that is over"
    assert counted([worker(restarts)], budget=after).restarts == after.restarts, "restarts are not counted again"


def test_a_clock_that_is_set_back_does_not_stretch_the_window():
    found = counted([worker(0)], [worker(1)], now=NOW + timedelta(days=300))
    corrected = begin_window(found, POLICY, False, NOW)
    assert (corrected.restarts, corrected.since) == (1, NOW)
    assert begin_window(corrected, POLICY, False, NOW + timedelta(seconds=WINDOW)).restarts == 0


@pytest.mark.parametrize(("seconds", "is_ended"), [(1, True), (120, True), (300, False), (1200, False)])
def test_which_crash_loops_the_default_ends(seconds, is_ended):
    """docs/how-to/restarts.md has this limit. Kubernetes waits 0, 10, 20 … 300 s, and anew after ten minutes."""
    waits = [0, 10, 20, 40, 80, 160] + [300] * 50 if seconds < 600 else [0] * 50
    times = accumulate(wait + seconds for wait in waits)
    budget, exceeded = NO_RESTARTS, False
    for number, after in enumerate(times, 1):
        now = NOW + timedelta(seconds=after)
        budget = count(begin_window(budget, POLICY, False, now), [worker(number)], now)
        exceeded = exceeded or budget.restarts > POLICY.max_restarts
    assert exceeded == is_ended
