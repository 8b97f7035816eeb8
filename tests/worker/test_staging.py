"""`Staging` with a fake device, whose copies are complete when a test says so, and a fake gloo."""

from __future__ import annotations

import datetime
import queue
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from orca_worker.errors import NeighbourError
from orca_worker.staging import Staging
from support.host_waits import HostWaits

SECONDS = 60
RECEIVER = 3
GPU = torch.device("meta")


class Copies:
    """Copies to the host, each with an event that completes it; a copy of a negative number fails."""

    def __init__(self) -> None:
        self.complete: list[threading.Event] = []
        self.waited: queue.SimpleQueue[int] = queue.SimpleQueue()

    def start(self, hidden: torch.Tensor) -> Callable[[], list[torch.Tensor]]:
        number, complete = len(self.complete), threading.Event()
        self.complete.append(complete)

        def wait() -> list[torch.Tensor]:
            self.waited.put(number)
            assert complete.wait(SECONDS)
            if hidden.item() < 0:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return [hidden]

        return wait


class Work:
    """A send of gloo, that ends when `ended` is set; with an error if `lost`."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.waits = threading.Event()
        self.lost = False

    def wait(self, timeout: datetime.timedelta) -> None:
        self.waits.set()
        assert self.ended.wait(timeout.total_seconds())
        if self.lost:
            raise RuntimeError("Connection closed by peer")


class Gloo:
    """Sends in their order."""

    def __init__(self) -> None:
        self.sent: queue.SimpleQueue[tuple[int, Work]] = queue.SimpleQueue()
        self.refuses = False

    def start(self, on_host: torch.Tensor, receiver: int) -> Work:
        assert receiver == RECEIVER
        if self.refuses:
            raise RuntimeError("Connection closed by peer")
        work = Work()
        self.sent.put((int(on_host.item()), work))
        return work


class Played:
    """A staging with its device and its gloo."""

    def __init__(self, max_in_flight: int = 2, seconds: float = SECONDS) -> None:
        self.copies, self.gloo = Copies(), Gloo()
        self.staging = Staging(
            GPU,
            cast(Any, self.copies),
            cast(Any, self.gloo.start),
            lambda other, error: NeighbourError(f"lost rank {other}: {error}", [other]),
            datetime.timedelta(seconds=seconds),
            max_in_flight,
        )

    def send(self, number: int) -> None:
        self.staging.send(torch.tensor(number), RECEIVER)

    def next_sent(self) -> tuple[int, Work]:
        return self.gloo.sent.get(timeout=SECONDS)


@pytest.fixture
def played() -> Played:
    return Played()


def test_the_main_thread_does_not_wait_for_the_device_and_sends_leave_in_order(played):
    played.send(10)
    played.send(11)  # the caller goes on: no copy is complete
    assert played.copies.waited.get(timeout=SECONDS) == 0
    played.copies.complete[1].set()
    assert played.gloo.sent.empty(), "the second copy is complete, but the first is not"
    played.copies.complete[0].set()
    assert [played.next_sent()[0] for _ in range(2)] == [10, 11]


def test_no_more_buffers_than_sends_in_flight():
    """The third send waits for the end of the first, which has been sent then, not for the device."""
    played = Played(max_in_flight=2)
    for number in (10, 11):
        played.send(number)
        played.copies.complete[-1].set()
    first, second = (played.next_sent()[1] for _ in range(2))
    third = threading.Thread(target=played.send, args=(12,))
    third.start()
    assert first.waits.wait(SECONDS)
    assert len(played.copies.complete) == 2, "no further copy has started"
    first.ended.set()
    third.join(SECONDS)
    assert not third.is_alive()
    assert len(played.copies.complete) == 3
    assert not second.waits.is_set()
    played.copies.complete[2].set()
    assert played.next_sent()[0] == 12


def refused(played: Played, done: Callable[[], None]) -> NeighbourError:
    """Run `done`, which lets a send fail, while the main thread waits in its next send; return its error."""
    errors: queue.SimpleQueue[NeighbourError] = queue.SimpleQueue()

    def send() -> None:
        with pytest.raises(NeighbourError) as caught:
            played.send(11)
        errors.put(caught.value)

    waiting = threading.Thread(target=send)
    waiting.start()
    done()
    waiting.join(SECONDS)
    assert not waiting.is_alive()
    return errors.get_nowait()


def test_leaving_ends_the_wait_for_a_copy_and_sends_nothing_more():
    played = Played(max_in_flight=1)
    played.send(10)
    assert played.copies.waited.get(timeout=SECONDS) == 0
    error = refused(played, played.staging.leave)  # the copy is not complete
    assert str(error) == f"lost rank {RECEIVER}: the epoch is over"
    assert error.lost_ranks == [RECEIVER]
    played.copies.complete[0].set()
    thread = played.staging._thread
    assert thread is not None
    thread.join(SECONDS)
    assert not thread.is_alive(), "the thread has ended"
    assert played.gloo.sent.empty()


def test_a_copy_that_does_not_end_is_waited_for_no_longer_than_a_rank():
    played = Played(max_in_flight=1, seconds=0.0)
    played.send(10)
    with pytest.raises(NeighbourError, match="nothing was sent within 0:00:00"):
        played.send(11)
    played.copies.complete[0].set()


def test_a_receiver_that_is_lost_before_the_send_is_a_lost_neighbour():
    played = Played(max_in_flight=1)
    played.gloo.refuses = True
    played.send(10)
    error = refused(played, played.copies.complete[0].set)
    assert str(error) == f"lost rank {RECEIVER}: Connection closed by peer"
    with pytest.raises(NeighbourError, match="Connection closed by peer"):
        played.send(12)


def test_a_receiver_that_is_lost_during_the_send_is_a_lost_neighbour():
    played = Played(max_in_flight=1)
    played.send(10)
    played.copies.complete[0].set()
    work = played.next_sent()[1]
    work.lost = True
    error = refused(played, work.ended.set)
    assert error.lost_ranks == [RECEIVER]


def test_a_failure_of_the_device_is_no_lost_neighbour():
    played = Played(max_in_flight=1)
    played.send(-1)
    played.copies.complete[0].set()
    with pytest.raises(RuntimeError, match=r"^CUDA error") as caught:
        played.send(11)
    assert not isinstance(caught.value, NeighbourError)


def test_after_the_close_nothing_refers_to_the_group(played):
    played.send(10)
    played.copies.complete[0].set()
    work = played.next_sent()[1]
    played.staging.close()
    assert not played.staging._sends
    assert not work.waits.is_set(), "the end of a send is not waited for"


def test_what_was_received_is_copied_to_the_device_without_a_wait(played):
    received = played.staging.buffer((2, 4), torch.float32)
    assert received.device.type == "cpu"
    with HostWaits(received) as waits:
        hidden = played.staging.to_device(received)
    assert (hidden.device, hidden.shape, waits.found) == (GPU, received.shape, [])


def test_no_thread_is_started_before_it_is_needed(played):
    """The last partition sends nothing."""
    played.staging.close()
    assert played.staging._thread is None
