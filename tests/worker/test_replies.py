"""`Replies`: a fake device whose results are waited for never keeps the caller waiting, and replies leave in order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pytest
from orca_protos import engine_pb2 as pb
from orca_worker.replies import Replies

SECONDS = 60


class Device:
    """Iterations that are complete when a test says so."""

    def __init__(self) -> None:
        self.sent: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.errors: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        self.replies = Replies(lambda reply: self.sent.put(reply.result.sequence), self.errors.put)
        self.complete: dict[int, threading.Event] = {}

    def launch(self, sequence: int, error: Exception | None = None, generation: int | None = None) -> threading.Event:
        """Launch an iteration, by default of the present generation.

        Return an event that is set while the thread waits for it.
        """
        complete, waits = self.complete.setdefault(sequence, threading.Event()), threading.Event()

        def wait() -> pb.RankReply:
            waits.set()
            assert complete.wait(SECONDS)
            if error is not None:
                raise error
            return pb.RankReply(result=pb.IterationResult(sequence=sequence))

        self.replies.put(wait, self.replies.generation if generation is None else generation)
        return waits


@pytest.fixture
def device() -> Device:
    return Device()


def test_replies_leave_in_order_and_none_before_its_iteration_is_complete(device):
    waits = [device.launch(sequence) for sequence in range(3)]  # the caller goes on
    device.complete[1].set()
    device.complete[2].set()
    assert waits[0].wait(SECONDS)
    assert device.sent.empty()
    device.complete[0].set()
    assert [device.sent.get(timeout=SECONDS) for _ in range(3)] == [0, 1, 2]


def discard_all(device: Device) -> list[int]:
    waits = device.launch(0)
    device.launch(1)
    assert waits.wait(SECONDS)
    device.replies.discard()  # the thread waits for the device, which an abort frees afterwards
    return [0, 1]


def discard_none(device: Device) -> list[int]:
    device.replies.discard()
    return []


@pytest.mark.parametrize("discard", [discard_all, discard_none])
def test_after_a_discard_only_later_replies_are_sent(device, discard: Callable[[Device], list[int]]):
    dropped = discard(device)
    device.launch(2)
    for sequence in [*dropped, 2]:
        device.complete[sequence].set()
    assert device.sent.get(timeout=SECONDS) == 2
    assert device.sent.empty()


def test_an_error_of_the_device_is_reported_but_not_that_of_a_discarded_iteration(device):
    waits = device.launch(0, RuntimeError("unspecified launch failure"))
    assert waits.wait(SECONDS)
    device.replies.discard()
    device.complete[0].set()
    device.launch(1, RuntimeError("an illegal memory access was encountered"))
    device.complete[1].set()
    assert str(device.errors.get(timeout=SECONDS)) == "an illegal memory access was encountered"
    assert device.errors.empty()
    assert device.sent.empty()


def test_the_error_of_an_iteration_that_a_discard_has_interrupted_is_not_reported(device):
    """The reader thread discards while the main thread executes."""
    generation = device.replies.generation
    device.replies.discard()
    device.launch(0, RuntimeError("NCCL communicator was aborted"), generation)
    device.launch(1)
    for complete in device.complete.values():
        complete.set()
    assert device.sent.get(timeout=SECONDS) == 1
    assert device.errors.empty()


def test_no_thread_is_started_before_it_is_needed(device):
    """A rank on a CPU never needs it."""
    assert device.replies._thread is None
