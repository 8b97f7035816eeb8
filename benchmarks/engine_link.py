"""Measures encoding and decoding of outputs on the link between master and API processes: protobuf and pickle.

    python benchmarks/engine_link.py [--rounds 7]

Encodes and decodes the outputs of one iteration of 1, 64 and 256 requests, alternately with both formats on one core: a
token per request (the common case), and a token with 5 log probabilities. An earlier version of the link used pickle,
which executes code chosen by the sender; pickle remains only here. Reported: the median of the rounds in
microseconds per message, and bytes.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import time
import uuid
from collections.abc import Callable
from functools import partial

from orca_master.api_processes.link_codec import decode_from_master, encode_from_master
from orca_master.api_processes.link_messages import Outputs
from orca_master.engine.messages import Output
from orca_protos import engine_pb2 as pb

COUNTS = (1, 64, 256)
ROUND_SECONDS = 0.2


def outputs(count: int, num_logprobs: int) -> list[Output]:
    """Return the outputs of one iteration."""
    result = []
    for index in range(count):
        logprobs = None
        if num_logprobs:
            tokens = [1000 * index + place for place in range(num_logprobs)]
            logprobs = pb.Logprobs(index=index, sampled=-0.5, token=tokens, logprob=[-0.5 - token for token in tokens])
        result.append(Output(f"chatcmpl-{uuid.uuid4().hex}-0", 31_000 + index, None, logprobs=logprobs))
    return result


def microseconds(call: Callable[[], object]) -> float:
    """Return the mean time of one call over a round."""
    calls, began = 0, time.process_time()
    while (spent := time.process_time() - began) < ROUND_SECONDS:
        for _ in range(20):
            call()
        calls += 20
    return 1e6 * spent / calls


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print(f"{'outputs':>7} {'logprobs':>8} {'format':>8} {'encode us':>10} {'decode us':>10} {'bytes':>7}")
    for num_logprobs in (0, 5):
        for count in COUNTS:
            message = Outputs(outputs(count, num_logprobs))
            formats: dict[str, tuple[Callable[[Outputs], bytes], Callable[[bytes], object]]] = {
                "pickle": (lambda value: pickle.dumps(value, pickle.HIGHEST_PROTOCOL), pickle.loads),
                "protobuf": (encode_from_master, decode_from_master),
            }
            times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in formats}
            for _ in range(rounds):
                for name, (encode, decode) in formats.items():
                    data = encode(message)
                    times[name][0].append(microseconds(partial(encode, message)))
                    times[name][1].append(microseconds(partial(decode, data)))
            for name, (encode, _) in formats.items():
                encoding, decoding = (statistics.median(values) for values in times[name])
                size = len(encode(message))
                print(f"{count:7} {num_logprobs:8} {name:>8} {encoding:10.1f} {decoding:10.1f} {size:7}")


if __name__ == "__main__":
    main()
