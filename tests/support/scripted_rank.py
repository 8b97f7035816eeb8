"""A rank without a model, for tests of the controller: answers cold commands as the JSON that comes first says.

    silent: KIND    gives no answer to commands of this kind
    wrong: KIND     answers commands of this kind with `allocated`, or `formed` for an allocate
    hold: COUNT     answers only when COUNT commands have come, in an order drawn with `seed`
    writes: COUNT   writes COUNT bytes to standard error, without a line break, before it reads a command
    asks: KEY       waits for the value of this key before it forms epoch 1, and answers with the error if there is none
    complains: I    rank I answers an iteration with the loss of a neighbour, and ends

The answers show whose they are: Prepared names its epoch, WarmedUp has as many blocks as it was asked for tokens.
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
parser.add_argument("--tensor-rank", type=int)
arguments = parser.parse_args()
connection = socket.socket(fileno=arguments.fd)


def value_of(key):
    """Asks the rendezvous; commands that come before the answer are kept for later."""
    question = pb.RendezvousRequest(epoch=epoch, key=key, timeout_ms=100_000)
    connection.sendall(encode(pb.RankReply(rendezvous=question, number=1)))
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
        return pb.RankReply(load=pb.LoadProgress(facts=pb.ModelFacts(digest=digest)))
    if kind == "form":
        return formed()
    return {
        "prepare": pb.RankReply(prepared=pb.Prepared(epoch=command.prepare.epoch)),
        "warmup": pb.RankReply(warmed_up=pb.WarmedUp(num_blocks=command.warmup.max_tokens)),
        "allocate": pb.RankReply(allocated=pb.Allocated()),
        "unload": pb.RankReply(unloaded=pb.Unloaded()),
    }[kind]


sys.stderr.write("x" * script.get("writes", 0))
sys.stderr.flush()
held, later, epoch, partition = [], [], 0, 0
while (command := later.pop(0) if later else read_command(connection)) is not None:
    kind = command.WhichOneof("command")
    if kind == "load":
        partition = command.load.partition
    if kind == "prepare":
        epoch = command.prepare.epoch
    if kind == "iteration":
        if script.get("complains") == arguments.tensor_rank:
            fault = pb.Fault(
                message="lost its neighbour",
                kind=pb.FAULT_KIND_CONSEQUENCE,
                epoch=epoch,
                partition=partition,
                tensor_rank=arguments.tensor_rank,
            )
            connection.sendall(encode(pb.RankReply(fault=fault)))
            sys.exit(1)
        continue
    if kind == script.get("silent"):
        continue
    reply = answer(command)
    reply.number = command.number
    held.append(reply)
    if len(held) >= script.get("hold", 1):
        if "seed" in script:
            random.Random(script["seed"]).shuffle(held)
        for reply in held:
            connection.sendall(encode(reply))
        held = []
