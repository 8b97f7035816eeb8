"""Streams through the Service from a pod of the cluster, again and again until the test ends them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.kubernetes import Namespace

STOP = "/tmp/stop"
MOST_SECONDS = 560
"""Bound of the streams of a test, below that of the test."""
STREAMER = """
import concurrent.futures, json, os, sys, urllib.request
def stream(body):
    request = urllib.request.Request(sys.argv[1], json.dumps(body).encode(), {"Content-Type": "application/json"})
    text, tokens, reason = "", [], None
    for line in urllib.request.urlopen(request, timeout=30):
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            assert "error" not in event, event
            (choice,) = event["choices"]
            text, tokens, reason = text + choice["text"], tokens + choice.get("token_ids", []), choice["finish_reason"]
    return [text, tokens, reason]
def streams(body):
    transcripts = [stream(body)]
    while not os.path.exists(sys.argv[2]):
        transcripts.append(stream(body))
    return transcripts
bodies = json.load(sys.stdin)
with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
    print(json.dumps(list(pool.map(streams, bodies))))
"""
"""Program for a pod: streams each body again and again until a file exists, and prints the transcripts by body.

A silence of 30 s is an error: a stream that waits has comments.
"""
BODIES = [
    {"prompt": [1 + seed, 2, 3], "max_tokens": 400 + 50 * seed, "temperature": 0.9 * (seed % 2), "seed": seed,
     "stream": True, "ignore_eos": True, "return_token_ids": True}
    for seed in range(6)
]  # fmt: skip
"""Greedy and seeded."""


@contextlib.contextmanager
def streams_go_on(namespace: Namespace) -> Iterator[list[int]]:
    """Stream all BODIES to the OrcaDeployment `demo` during the block: every stream must equal its undisturbed run.

    Yields a list that has the number of streams of each body after the block.
    """
    namespace.ask("demo", [{"prompt": [1], "max_tokens": 1}])  # the client is there
    inside = ("exec", "client", "--")
    namespace.kubectl(*inside, "touch", STOP)
    undisturbed = [transcript for (transcript,) in run_streams(namespace)]
    assert [len(tokens) for _, tokens, _ in undisturbed] == [body["max_tokens"] for body in BODIES]
    namespace.kubectl(*inside, "rm", STOP)
    numbers: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_streams, namespace)
        try:
            yield numbers
        finally:
            namespace.kubectl(*inside, "touch", STOP)
        transcripts = running.result(120)
    for expected, repeated in zip(undisturbed, transcripts, strict=True):
        assert [transcript for transcript in repeated if transcript != expected] == []
    numbers += map(len, transcripts)


def run_streams(namespace: Namespace) -> list[list[Any]]:
    """Run STREAMER in the client's pod; return [text, token ids, finish reason] of each stream, by body."""
    program = ("python3", "-c", STREAMER, "http://demo/v1/completions", STOP)
    printed = namespace.kubectl("exec", "-i", "client", "--", *program, stdin=json.dumps(BODIES), seconds=MOST_SECONDS)
    transcripts: list[list[Any]] = json.loads(printed)
    return transcripts
