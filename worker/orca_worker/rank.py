"""A rank process: reads commands from its controller and runs them on its `Stage`, one by one.

The controller starts it as `python -m orca_worker.rank --fd N`, bound to it (parent_death.py). A separate thread reads
the socket, so that this process exits at once when its controller does, even while a kernel runs or the main thread
waits for another rank. On a GPU a third thread waits for the results of iterations (replies.py). A ModelError is
reported and the process stays. After a NeighbourError the process leaves the epoch and keeps its weights for the next
epoch. Any other error, on any thread, is reported as a fault and ends the process with a non-zero exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import logging
import os
import queue
import socket
import sys
import threading
import time
import traceback

from orca_worker.torch_import import import_torch

if __name__ == "__main__":
    gc.disable()  # until all modules are imported, see orca_protos.uncollected
    import_torch()  # before the modules that import torch

import torch
from orca_kernels.cpu.heap import keep_freed_memory, return_freed_memory
from orca_protos import engine_pb2 as pb
from orca_protos.faults import MAX_MESSAGE_BYTES, cut

from orca_worker.errors import ModelError, NeighbourError, RankError, kind_of
from orca_worker.frames import encode, read_command
from orca_worker.replies import Replies
from orca_worker.stage import Stage

PROGRESS_INTERVAL = 0.5
"""Seconds between two progress messages of a load."""
ANSWER_SECONDS = 10.0
"""Added to the timeout of a rendezvous request, so that the controller's error, which has the cause, arrives first."""
LOCK_SECONDS = 1.0
"""How long a thread waits for the other thread's write before it gives up reporting a fault."""

Command = pb.RankCommand | pb.Iteration | NeighbourError
"""What the reader thread passes to the main thread; an error stands for the iteration in which it occurred."""

logger = logging.getLogger("orca_worker.rank")


class Rank:
    """Executes commands in order and answers each on `connection`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._writing = threading.Lock()
        self._tensor_rank = 0
        self._partition = 0
        self._epoch = 0
        self._number = 0  # of the command that is being executed
        self._questions = itertools.count(1)
        self._answers: dict[int, queue.SimpleQueue[pb.RendezvousReply]] = {}
        self._stage: Stage | None = None
        self._last_progress = 0.0
        self._replies = Replies(self._send, self._end)
        self._ended_epoch = 0
        """Iterations up to this epoch are ignored: a neighbour is lost, or a later epoch is about to be prepared."""

    def decode(self, command: pb.RankCommand) -> Command | None:
        """Decode a command on the reader thread, which posts receives early, keeps masks and frees waiting threads."""
        stage = self._stage  # the main thread may set it to None meanwhile
        kind = command.WhichOneof("command")
        if kind == "prepare" and stage is not None:
            self._ended_epoch = command.prepare.epoch - 1
            self._replies.discard()
        if kind != "iteration" or stage is None:
            if stage is not None:
                stage.abandon(kind)
            return command
        iteration = pb.Iteration.FromString(command.iteration)
        try:
            return iteration if stage.expect(iteration) else None
        except NeighbourError as error:
            return error

    def handle(self, command: Command) -> None:
        """Run one command; raise the error that ends this rank."""
        generation = self._replies.generation  # before the epoch is compared: `decode` ends the epoch first
        try:
            if isinstance(command, pb.RankCommand):
                self._run_or_refuse(command)
            elif self._epoch > self._ended_epoch:
                self._iterate(command, generation)
        except NeighbourError as error:
            self._leave_epoch(error)

    def _iterate(self, iteration: pb.Iteration | NeighbourError, generation: int) -> None:
        """Start an iteration of this `generation` of replies, or leave the epoch because of the error in its place."""
        assert self._stage is not None
        self._number = 0
        if isinstance(iteration, NeighbourError):
            raise iteration  # `handle` leaves the epoch
        reply = self._stage.execute(iteration)
        if self._stage.runs_ahead:
            self._replies.put(reply, generation)
        else:
            self._send(reply())

    def _run_or_refuse(self, command: pb.RankCommand) -> None:
        """Run one cold command and reply to it, if only with the reason why the user must change the request."""
        try:
            self._run(command)
        except ModelError as error:
            self._reply(pb.RankReply(fault=self._fault(error)))

    def _run(self, command: pb.RankCommand) -> None:
        self._number = command.number
        kind = command.WhichOneof("command")
        if kind == "load":
            self._partition, self._tensor_rank = command.load.partition, command.tensor_rank
            if command.core:
                os.sched_setaffinity(0, command.core)  # of this thread, and of all threads that it starts from now on
            self._load(command.load)
            return
        if kind == "unload":
            self._unload()
            self._reply(pb.RankReply(unloaded=pb.Unloaded()))
            return
        stage = self._stage
        if stage is None:
            raise RankError(f"{kind} came before load")
        if kind == "prepare":
            self._replies.discard()  # of iterations that were executed since the reader thread did
            self._epoch = command.prepare.epoch
            stage.prepare(command.prepare.epoch)
            self._reply(pb.RankReply(prepared=pb.Prepared(epoch=command.prepare.epoch)))
        elif kind == "form":
            stage.form(command.form, self.ask)
            self._reply(pb.RankReply(formed=pb.Formed()))
        elif kind == "warmup":
            num_blocks, formula = stage.warmup(command.warmup)
            self._reply(pb.RankReply(warmed_up=pb.WarmedUp(num_blocks=num_blocks, formula=formula)))
        elif kind == "allocate":
            stage.allocate(command.allocate.num_blocks)
            gc.freeze()  # excludes all present objects from garbage collections
            self._reply(pb.RankReply(allocated=pb.Allocated()))
        elif kind == "change_adapters":
            stage.adapters.change(command.change_adapters)
            self._reply(pb.RankReply(adapters_changed=pb.AdaptersChanged()))
        else:
            raise RankError(f"command {kind} is unknown")

    def ask(self, request: pb.RendezvousRequest) -> pb.RendezvousReply:
        """Send a rendezvous request and wait for the controller's reply. Call from any thread but the reader."""
        number = next(self._questions)
        answer = self._answers[number] = queue.SimpleQueue()
        try:
            self._send(pb.RankReply(rendezvous=request, number=number))
            return answer.get(timeout=request.timeout_ms / 1000 + ANSWER_SECONDS)
        except queue.Empty:
            return pb.RendezvousReply(error="timeout: the controller did not reply")
        finally:
            del self._answers[number]

    def pong(self, command: pb.RankCommand) -> None:
        """Answer a ping on the reader thread."""
        self._send(pb.RankReply(pong=pb.Pong(), number=command.number))

    def answer(self, command: pb.RankCommand) -> None:
        """Pass a rendezvous reply from the reader thread to the waiting thread; drop it if the wait has timed out."""
        if (waiting := self._answers.get(command.number)) is not None:
            waiting.put(command.rendezvous)

    def _leave_epoch(self, error: NeighbourError) -> None:
        """Report the loss of a neighbour, leave its group, and ignore iterations until the next epoch is prepared."""
        if self._stage is None:
            raise error
        logger.warning("rank %d leaves epoch %d: %s", self._tensor_rank, self._epoch, error)
        self._ended_epoch = max(self._ended_epoch, self._epoch)
        self._replies.discard()
        self._reply(pb.RankReply(fault=self._fault(error)))
        # Frames of the traceback refer to the group, whose sockets would stay open.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        self._stage.close()  # ends the waits of other ranks for this rank

    def _load(self, request: pb.LoadRequest) -> None:
        self._stage = None
        self._stage = Stage(request, self._tensor_rank, self._progress)
        keep_freed_memory()  # that of activations; `_unload` returns that of weights
        self._reply(pb.RankReply(load=pb.LoadProgress(facts=self._stage.facts())))

    def _unload(self) -> None:
        """Release the model, its pools and its groups: the next load finds the process as if newly started."""
        if self._stage is not None:
            self._stage.close()
        self._stage = None
        self._partition = self._epoch = 0
        gc.unfreeze()  # objects that `allocate` has frozen would not be collected
        gc.collect()
        return_freed_memory()
        torch.cuda.empty_cache()  # no-op without CUDA

    def _progress(self, loaded_bytes: int) -> None:
        now = time.monotonic()
        if now - self._last_progress > PROGRESS_INTERVAL:
            self._last_progress = now
            self._reply(pb.RankReply(load=pb.LoadProgress(loaded_bytes=loaded_bytes)))

    def report(self, error: BaseException) -> None:
        """Log the error that ends this rank and send it to the controller, unless the other thread's write blocks."""
        traceback.print_exception(error)
        sys.stderr.flush()
        if not self._writing.acquire(timeout=LOCK_SECONDS):
            return
        try:
            with contextlib.suppress(OSError):
                self._connection.sendall(encode(pb.RankReply(fault=self._fault(error))))
        finally:
            self._writing.release()

    def _fault(self, error: BaseException) -> pb.Fault:
        message = str(error) if isinstance(error, ModelError) else f"{type(error).__name__}: {error}"
        return pb.Fault(
            message=cut(message, MAX_MESSAGE_BYTES),
            kind=kind_of(error),
            epoch=self._epoch,
            partition=self._partition,
            lost_rank=error.lost_ranks if isinstance(error, NeighbourError) else (),
        )

    def _end(self, error: Exception) -> None:
        """End the process because of an error on the thread of the replies."""
        if isinstance(error, ConnectionError):
            os._exit(0)  # the controller has exited
        self.report(error)
        os._exit(1)

    def _reply(self, reply: pb.RankReply) -> None:
        reply.number = self._number
        self._send(reply)

    def _send(self, reply: pb.RankReply) -> None:
        with self._writing:
            self._connection.sendall(encode(reply))


def run(connection: socket.socket) -> int:
    """Serve the controller until it exits or a fault ends this rank; return the exit code."""
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    rank = Rank(connection)
    threading.Thread(target=_read, args=(connection, rank, commands), daemon=True).start()
    while True:
        try:
            rank.handle(commands.get())
        except ConnectionError:
            return 0  # the controller has exited
        except Exception as error:
            rank.report(error)
            return 1


def _read(connection: socket.socket, rank: Rank, commands: queue.SimpleQueue[Command]) -> None:
    """Run the reader thread: end the process with code 0 when the controller has exited, with code 1 on an error."""
    code = 1
    try:
        while (command := read_command(connection)) is not None:
            if command.HasField("rendezvous"):
                rank.answer(command)
            elif command.HasField("ping"):
                rank.pong(command)
            elif (decoded := rank.decode(command)) is not None:
                commands.put(decoded)
        code = 0
    except BaseException as error:
        rank.report(error)
    finally:
        os._exit(code)


def run_as_process() -> None:
    """Parse the command line, serve the controller, and end this process."""
    gc.freeze()
    gc.enable()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited end of the socket pair")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in ("orca_kernels", "orca_worker.decode_graphs"):
        logging.getLogger(name).setLevel(logging.INFO)  # a first build and recordings take long: say so at every level
    code = run(socket.socket(fileno=arguments.fd))
    sys.stderr.flush()
    os._exit(code)  # threads of gloo or NCCL may still wait for a lost rank


if __name__ == "__main__":
    run_as_process()
