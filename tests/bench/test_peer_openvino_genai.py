"""Requests that OpenVINO is given: no more at a time than the batch size, each when a place is free."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.peer_programs import peer_program


class Handle:
    """Stand-in for a request that ends after `steps` steps."""

    def __init__(self, steps, started):
        self.steps = steps
        started.append(self)

    def get_status(self):
        return SimpleNamespace(name="RUNNING" if self.steps else "FINISHED")


@pytest.mark.parametrize(
    ("lengths", "size", "most", "steps"),
    [([3], 1, 1, 3), ([3, 2, 4], 1, 1, 9), ([3, 1, 2], 2, 2, 3), ([2, 2, 2], 8, 3, 2), ([], 4, 0, 0)],
)
def test_a_request_begins_when_a_place_is_free(lengths, size, most, steps):
    started, running = [], []

    def step():
        active = [handle for handle in started if handle.steps]
        running.append(len(active))
        for handle in active:
            handle.steps -= 1

    with peer_program("openvino_genai") as module:
        handles = module.generate([lambda count=count: Handle(count, started) for count in lengths], step, size)
    assert handles == started
    assert len(handles) == len(lengths)
    assert not any(handle.steps for handle in handles)
    assert max(running, default=0) == most
    assert len(running) == steps, "no step is without a request that could run"
