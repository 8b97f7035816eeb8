"""What the master reports about background responses reaches those who wait for it."""

from __future__ import annotations

from orca_master.api_processes.link_messages import ResponsesChanged, StopResponse
from orca_master.api_processes.response_notices import ResponseNotices


def test_a_change_wakes_the_readers_of_this_response():
    notices = ResponseNotices()
    with notices.watching("a") as first, notices.watching("a") as second, notices.watching("b") as other:
        notices.handle(ResponsesChanged(["a", "unknown"]))
        assert (first.is_set(), second.is_set(), other.is_set()) == (True, True, False)
        notices.close()
        assert other.is_set(), "the end of the link wakes all"
    with notices.watching("a") as again:
        assert not again.is_set()


def test_a_response_is_stopped_once():
    notices = ResponseNotices()
    stopped: list[str] = []
    notices.begin("a", lambda: stopped.append("a"))
    notices.begin("b", lambda: stopped.append("b"))
    notices.end("b")
    for name in "aabc":
        notices.handle(StopResponse(name))
    assert stopped == ["a"]
