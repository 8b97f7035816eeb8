"""`GroupAbort`: groups that only end together, and only when the graphs that refer to them are gone."""

from __future__ import annotations

import threading
from typing import Any, cast

from orca_worker.group_abort import GroupAbort

SECONDS = 60


class Group:
    """Its abort waits until every group is told to end, as if its kernel was queued behind theirs, and for graphs."""

    def __init__(self, together: threading.Barrier, graphs_gone: threading.Event) -> None:
        self.aborts = 0
        self._together = together
        self._graphs_gone = graphs_gone

    def abort(self) -> None:
        self._together.wait(SECONDS)
        assert self._graphs_gone.wait(SECONDS)
        self.aborts += 1


def test_the_caller_goes_on_and_groups_are_aborted_together_and_once():
    together, graphs_gone = threading.Barrier(2), threading.Event()
    groups = [Group(together, graphs_gone) for _ in range(2)]
    abort = GroupAbort(cast(Any, groups))
    abort.begin()
    abort.begin()
    assert [group.aborts for group in groups] == [0, 0]
    graphs_gone.set()  # by the thread that has begun the abort, or by another
    abort.wait()
    assert [group.aborts for group in groups] == [1, 1]


def test_a_group_that_cannot_be_aborted_is_a_line_in_the_log(caplog):
    class Gone:
        def abort(self) -> None:
            raise RuntimeError("the group was destroyed")

    abort = GroupAbort(cast(Any, [Gone()]))
    abort.begin()
    abort.wait()
    assert caplog.messages == ["a process group could not be aborted: the group was destroyed"]


def test_without_groups_nothing_is_waited_for():
    abort = GroupAbort(())
    abort.begin()
    abort.wait()
