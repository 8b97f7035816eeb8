"""A rank process: unreadable frames and its controller's end end it, the loss of a neighbour does not; and a rank on a
device whose waits block, played by `Device`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from orca_protos import engine_pb2 as pb
from orca_worker.errors import NeighbourError
from orca_worker.frames import encode
from orca_worker.rank import Rank
from orca_worker.rank_start import RANK_COMMAND
from support.served import eventually
from support.variants import one_short

SECONDS = 100
MODEL = Path(__file__).parents[2] / "examples" / "demo-model"


@contextlib.contextmanager
def rank_process() -> Iterator[tuple[socket.socket, subprocess.Popen[str]]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [*RANK_COMMAND, "--fd", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        theirs.close()
        try:
            yield ours, process
        finally:
            process.kill()
            process.wait()


def received(connection: socket.socket) -> pb.RankReply:
    connection.settimeout(SECONDS)
    return next_reply(connection.makefile("rb"))


def next_reply(stream: BinaryIO) -> pb.RankReply:
    (length,) = struct.unpack("<I", stream.read(4))
    return pb.RankReply.FromString(stream.read(length))


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"\x05\x00\x00\x00\xff\xff\xff\xff\xff", "a command of 5 bytes cannot be decoded"),
        (b"\xff\xff\xff\x7f", "a frame of 2147483647 bytes exceeds the bound of"),
    ],
    ids=["undecodable", "oversize"],
)
def test_what_the_reader_cannot_read_is_logged_and_ends_the_rank(frame, words):
    with rank_process() as (connection, process):
        connection.sendall(frame)
        _, log = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert "Traceback" in log
        assert words in log
        fault = received(connection).fault
        assert fault.kind == pb.FAULT_KIND_CAUSE
        assert words in fault.message


def test_a_rank_keeps_its_model_after_the_loss_of_a_neighbour():
    """The other rank of a formation never comes; the reader thread answers a ping meanwhile."""
    model = pb.LoadRequest(
        model_path=str(MODEL), pipeline_parallel_size=2, tensor_parallel_size=1, dtype="float32", device="cpu",
        communication_backend="gloo", workers_on_host=1,
    )  # fmt: skip
    with rank_process() as (connection, _):
        stream = connection.makefile("rb")
        connection.settimeout(SECONDS)

        def ask(command: pb.RankCommand) -> pb.RankReply:
            connection.sendall(encode(command))
            return next_reply(stream)

        connection.sendall(encode(pb.RankCommand(number=1, load=model, tensor_rank=0)))
        while not (reply := next_reply(stream)).load.HasField("facts"):
            assert reply.HasField("load"), reply
        assert ask(pb.RankCommand(number=2, prepare=pb.PrepareRequest(epoch=7))).prepared.epoch == 7
        question = ask(pb.RankCommand(number=3, form=pb.FormRequest(epoch=7, world_size=2, group_timeout_ms=90_000)))
        assert question.HasField("rendezvous")
        assert ask(pb.RankCommand(number=4, ping=pb.PingRequest())).HasField("pong")
        over = pb.RendezvousReply(error="the rendezvous of epoch 7 is over")
        lost = ask(pb.RankCommand(number=question.number, rendezvous=over))
        assert (lost.number, lost.fault.kind) == (3, pb.FAULT_KIND_CONSEQUENCE)
        iteration = pb.Iteration(epoch=7, sequence=1, row=[0], num_tokens=[1], token=[1])
        connection.sendall(encode(pb.RankCommand(iteration=iteration.SerializeToString())))  # ignored
        assert ask(pb.RankCommand(number=5, prepare=pb.PrepareRequest(epoch=8))).prepared.epoch == 8
        formed = ask(pb.RankCommand(number=6, form=pb.FormRequest(epoch=8, world_size=1)))
        assert formed.HasField("formed")
        warmup = pb.WarmupRequest(max_tokens=8, memory_utilization=0.5)
        assert ask(pb.RankCommand(number=7, warmup=warmup)).warmed_up.num_blocks > 0


@pytest.mark.parametrize("unread", one_short([False, True], True))
def test_the_end_of_the_controller_is_a_clean_end(unread, tmp_path):
    """With replies unread the socket is reset instead of closed."""
    with rank_process() as (connection, process):
        if unread:
            connection.sendall(encode(pb.RankCommand(number=1, load=pb.LoadRequest(model_path=str(tmp_path)))))
            connection.settimeout(SECONDS)
            assert connection.recv(1, socket.MSG_PEEK), "a reply lies there"
        connection.close()
        _, log = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        assert "Traceback" not in log


def test_a_rank_that_is_stopped_while_it_imports_torch_ends_with_its_controller(tmp_path):
    """When it does not read its socket yet."""
    begun = tmp_path / "begun"
    (tmp_path / "torch.py").write_text(
        f"import os, time\nopen({str(begun)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    )
    program = f"import subprocess; subprocess.run({[*RANK_COMMAND, '--fd', '0']!r})"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE) as controller:
        assert eventually(lambda: begun.is_file() and begun.read_text() != "")
        rank = int(begun.read_text())
        handle = os.pidfd_open(rank)
        os.kill(rank, signal.SIGSTOP)
        controller.kill()
    ready, _, _ = select.select([handle], [], [], 60)  # readable when the process has ended
    os.close(handle)
    if not ready:
        os.kill(rank, signal.SIGKILL)
    assert ready


class Device:
    """A stage whose iterations run on a device: complete when a test says so, and interrupted by `abandon`."""

    runs_ahead = True

    def __init__(self) -> None:
        self.executed: list[int] = []
        self.complete = threading.Event()
        self.abandoned = threading.Event()
        self.blocks_host = False
        """True: `execute` waits for the device, too, as a launch does whose queue is full."""
        self.waits = threading.Event()

    def _wait(self, interrupted: threading.Event) -> None:
        self.waits.set()
        assert interrupted.wait(SECONDS)

    def execute(self, iteration: pb.Iteration) -> Callable[[], pb.RankReply]:
        self.executed.append(iteration.sequence)
        if self.blocks_host:
            self._wait(self.abandoned)
            raise NeighbourError("NCCL communicator was aborted")

        def reply() -> pb.RankReply:
            self._wait(self.complete)
            return pb.RankReply(result=pb.IterationResult(sequence=iteration.sequence))

        return reply

    def expect(self, iteration: pb.Iteration) -> bool:
        return True

    def abandon(self, command: str | None) -> None:
        if command == "prepare":
            self.abandoned.set()
            self.complete.set()

    def prepare(self, epoch: int) -> None:
        assert self.abandoned.is_set()

    def close(self) -> None:
        pass


@pytest.fixture
def on_device() -> Iterator[tuple[Rank, Device, BinaryIO]]:
    """Yield a rank of epoch 1, its device, and the stream of its replies."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(SECONDS)
        rank, device = Rank(theirs), Device()
        rank._stage = cast(Any, device)
        stream = ours.makefile("rb")
        rank.handle(rank.decode(prepare(1)))
        assert next_reply(stream).prepared.epoch == 1
        device.complete.clear()
        device.abandoned.clear()
        yield rank, device, stream


def prepare(epoch: int) -> pb.RankCommand:
    return pb.RankCommand(number=epoch, prepare=pb.PrepareRequest(epoch=epoch))


def an_iteration(rank: Rank, sequence: int) -> object:
    iteration = pb.Iteration(epoch=1, sequence=sequence, row=[0], num_tokens=[1], token=[1])
    return rank.decode(pb.RankCommand(iteration=iteration.SerializeToString()))


def test_the_next_iterations_are_executed_while_the_device_computes(on_device):
    """The main thread waits for none of them, and their replies leave in order."""
    rank, device, stream = on_device
    for sequence in range(3):
        rank.handle(an_iteration(rank, sequence))
    assert device.executed == [0, 1, 2]
    device.complete.set()
    replies = [next_reply(stream) for _ in range(3)]
    assert [(reply.number, reply.result.sequence) for reply in replies] == [(0, 0), (0, 1), (0, 2)]


def test_a_command_is_executed_while_the_device_computes(on_device):
    """The reader thread frees the thread that waits for the device; its results belong to no epoch any more."""
    rank, device, stream = on_device
    rank.handle(an_iteration(rank, 0))
    late = an_iteration(rank, 1)
    assert device.waits.wait(SECONDS)
    command = rank.decode(prepare(2))
    assert device.abandoned.is_set()
    rank.handle(late)
    assert device.executed == [0], "its groups are aborted"
    rank.handle(command)
    assert next_reply(stream).prepared.epoch == 2


def test_a_main_thread_that_waits_for_a_lost_rank_is_freed(on_device):
    rank, device, stream = on_device
    device.blocks_host = True
    main = threading.Thread(target=rank.handle, args=(an_iteration(rank, 0),))
    main.start()
    assert device.waits.wait(SECONDS)
    command = rank.decode(prepare(2))
    main.join(SECONDS)
    assert not main.is_alive()
    rank.handle(command)
    lost, prepared = next_reply(stream), next_reply(stream)
    assert lost.fault.kind == pb.FAULT_KIND_CONSEQUENCE
    assert prepared.prepared.epoch == 2


def test_an_iteration_during_which_its_epoch_ends_has_no_reply(on_device, monkeypatch):
    """An error of the device, which an abort has interrupted, would end the rank."""
    rank, device, _ = on_device
    execute, generations = device.execute, []

    def interrupted(iteration: pb.Iteration) -> Callable[[], pb.RankReply]:
        reply = execute(iteration)
        rank.decode(prepare(2))  # on the reader thread
        return reply

    monkeypatch.setattr(device, "execute", interrupted)
    monkeypatch.setattr(rank._replies, "put", lambda _, generation: generations.append(generation))
    rank.handle(an_iteration(rank, 0))
    assert generations == [rank._replies.generation - 1]
