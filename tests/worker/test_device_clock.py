"""`DeviceClock` on the CPU, and over events of a fake GPU that are reached when the test says so."""

from __future__ import annotations

import threading
import time

import torch
from orca_worker.device_clock import DeviceClock

SECONDS = 60


def test_on_the_cpu_a_mark_has_the_time_of_its_call():
    before = time.monotonic_ns()
    mark = DeviceClock(torch.device("cpu")).mark()
    after = time.monotonic_ns()
    assert before <= mark() <= after
    assert mark() == mark()


def test_on_a_gpu_a_mark_has_the_time_at_which_the_device_reaches_it(monkeypatch):
    waits, reached = threading.Event(), threading.Event()

    class Event:
        recorded = False

        def record(self) -> None:
            self.recorded = True

        def synchronize(self) -> None:
            assert self.recorded
            waits.set()
            assert reached.wait(SECONDS)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    mark = DeviceClock(torch.device("cuda")).mark()  # does not wait
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(mark()))
    thread.start()
    assert waits.wait(SECONDS)
    before = time.monotonic_ns()
    reached.set()
    thread.join(SECONDS)
    assert found[0] >= before
