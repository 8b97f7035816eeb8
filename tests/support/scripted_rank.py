"""A rank without a model, for tests of the controller. The first argument, JSON, sets its replies to cold commands.

    silent: KIND    does not reply to commands of this kind
    wrong: KIND     replies to commands of this kind with `allocated`, or `formed` to an allocate
    hold: COUNT     replies only after COUNT commands, in a random order given by `seed`
    writes: COUNT   writes COUNT bytes without a line break to standard error before reading a command
    asks: KEY       waits for the value of this rendezvous key before it forms epoch 1; replies with the error, if any
    reads: [B, …]   rank I reports B[I] bytes of weights as read before it replies to a load
    digests: [D, …] rank I has loaded files with this digest instead of those of the request
    complains: I    rank I replies to an iteration with the loss of another rank, and exits, unless it
    stays: true
    computes: true  replies to an iteration with its result, without tokens

Replies identify their command: Prepared has its epoch, WarmedUp has as many blocks as the command has tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import sys

from orca_protos import engine_pb2 as pb
from orca_worker.frames import encode, read_command
from orca_worker.model_config import load_digest

script = json.loads(sys.argv.pop(1))
parser = argparse.ArgumentParser()
parser.add_argument("--fd", type=int)
arguments = parser.parse_args()
connection = socket.socket(fileno=arguments.fd)


def value_of(key):
    """Send a rendezvous request; keep commands that arrive before the reply for later."""
    request = pb.RendezvousRequest(epoch=epoch, key=key, timeout_ms=100_000)
    connection.sendall(encode(pb.RankReply(rendezvous=request, number=1)))
    while (command := read_command(connection)) is not None:
        if command.WhichOneof("command") == "rendezvous":
            return command.rendezvous
        later.append(command)
    sys.exit(0)


def formed():
    if "asks" in script and epoch == 1 and (error := value_of(script["asks"]).error):
        return pb.RankReply(fault=pb.Fault(message=error, kind=pb.FAULT_KIND_REQUEST))
    return pb.RankReply(formed=pb.Formed())


def answer(command):
    kind = command.WhichOneof("command")
    if kind == script.get("wrong"):
        return pb.RankReply(formed=pb.Formed()) if kind == "allocate" else pb.RankReply(allocated=pb.Allocated())
    if kind == "load":
        digest = load_digest(command.load) if command.load.model_path else "none"
        if "digests" in script:
            digest = script["digests"][command.tensor_rank]
        return pb.RankReply(load=pb.LoadProgress(facts=pb.ModelFacts(digest=digest)))
    if kind == "form":
        return formed()
    return {
        "prepare": pb.RankReply(prepared=pb.Prepared(epoch=command.prepare.epoch)),
        "warmup": pb.RankReply(warmed_up=pb.WarmedUp(num_blocks=command.warmup.max_tokens)),
        "allocate": pb.RankReply(allocated=pb.Allocated()),
        "unload": pb.RankReply(unloaded=pb.Unloaded()),
        "ping": pb.RankReply(pong=pb.Pong()),
    }[kind]


sys.stderr.write("x" * script.get("writes", 0))
sys.stderr.flush()
held, later, epoch, partition, tensor_rank = [], [], 0, 0, 0
while (command := later.pop(0) if later else read_command(connection)) is not None:
    kind = command.WhichOneof("command")
    if kind == "load":
        partition, tensor_rank = command.load.partition, command.tensor_rank
    if kind == "prepare":
        epoch = command.prepare.epoch
    if kind == "iteration":
        if script.get("complains") == tensor_rank:
            fault = pb.Fault(
                message="lost its neighbour",
                kind=pb.FAULT_KIND_CONSEQUENCE,
                epoch=epoch,
                partition=partition,
            )
            connection.sendall(encode(pb.RankReply(fault=fault)))
            if not script.get("stays"):
                sys.exit(1)
        if script.get("computes"):
            sequence = pb.Iteration.FromString(command.iteration).sequence
            result = pb.IterationResult(epoch=epoch, sequence=sequence)
            connection.sendall(encode(pb.RankReply(result=result)))
        continue
    if kind == script.get("silent"):
        continue
    if kind == "load" and "reads" in script:
        read = pb.LoadProgress(loaded_bytes=script["reads"][tensor_rank])
        connection.sendall(encode(pb.RankReply(load=read, number=command.number)))
    reply = answer(command)
    reply.number = command.number
    held.append(reply)
    if len(held) >= script.get("hold", 1):
        if "seed" in script:
            random.Random(script["seed"]).shuffle(held)
        for reply in held:
            connection.sendall(encode(reply))
        held = []
