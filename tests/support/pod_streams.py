"""Streams through the Service from a pod of the cluster, again and again until the test ends them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.kubernetes import Namespace

STOP = "/tmp/stop"
MOST_SECONDS = 860
"""Bound of the streams of a test, below that of the test."""
STREAMER = """
import concurrent.futures, json, os, sys, time, urllib.request
silences = []
def stream(body):
    request = urllib.request.Request(sys.argv[1], json.dumps(body).encode(), {"Content-Type": "application/json"})
    text, tokens, reason, last = "", [], None, time.monotonic()
    for line in urllib.request.urlopen(request, timeout=30):
        if line.startswith(b"data: {"):
            silences.append(time.monotonic() - last)
            last, event = time.monotonic(), json.loads(line[6:])
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
    print(json.dumps([list(pool.map(streams, bodies)), max(silences)]))
"""
"""Program for a pod: streams each body again and again until a file exists, and prints the transcripts by body, and the
longest time between two tokens of a stream, or between its request and its first token.

A silence of 30 s is an error: a stream that waits has comments.
"""


def bodies(count: int, least_tokens: int, more: int) -> list[dict[str, Any]]:
    """Return greedy and seeded requests; each has `more` tokens more than the one before it."""
    return [
        {"prompt": [1 + seed, 2, 3], "max_tokens": least_tokens + more * seed, "temperature": 0.9 * (seed % 2),
         "seed": seed, "stream": True, "ignore_eos": True, "return_token_ids": True}
        for seed in range(count)
    ]  # fmt: skip


SIX = bodies(6, 400, 50)
TWENTY = bodies(20, 100, 10)


@contextlib.contextmanager
def streams_go_on(
    namespace: Namespace, requests: list[dict[str, Any]] = SIX, equal: bool = True
) -> Iterator[list[int]]:
    """Stream all requests to the OrcaDeployment `demo` during the block, and print the longest silence of a stream.

    Every stream must equal its undisturbed run; without `equal`, for edits that change the sums of the model's
    arithmetic, it must have as many tokens. Yields a list that has the number of streams of each request after the
    block.
    """
    namespace.ask("demo", [{"prompt": [1], "max_tokens": 1}])  # the client is there
    inside = ("exec", "client", "--")
    namespace.kubectl(*inside, "touch", STOP)
    undisturbed = [transcript for (transcript,) in run_streams(namespace, requests)[0]]
    assert [len(tokens) for _, tokens, _ in undisturbed] == [body["max_tokens"] for body in requests]
    namespace.kubectl(*inside, "rm", STOP)
    numbers: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_streams, namespace, requests)
        try:
            yield numbers
        finally:
            namespace.kubectl(*inside, "touch", STOP)
        transcripts, silence = running.result(120)
    compared = list if equal else lengths
    for expected, repeated in zip(undisturbed, transcripts, strict=True):
        assert [transcript for transcript in repeated if compared(transcript) != compared(expected)] == []
    numbers += map(len, transcripts)
    print(f"{sum(numbers)} streams of {len(requests)} requests; longest silence {silence:.1f} s")


def lengths(transcript: list[Any]) -> list[Any]:
    """Return the number of tokens and the finish reason."""
    _, tokens, reason = transcript
    return [len(tokens), reason]


def run_streams(namespace: Namespace, requests: list[dict[str, Any]]) -> tuple[list[list[Any]], float]:
    """Run STREAMER in the client's pod.

    Returns [text, token ids, finish reason] of each stream, by request, and the longest silence in seconds.
    """
    program = ("python3", "-c", STREAMER, "http://demo/v1/completions", STOP)
    stdin = json.dumps(requests)
    printed = namespace.kubectl("exec", "-i", "client", "--", *program, stdin=stdin, seconds=MOST_SECONDS)
    transcripts, silence = json.loads(printed)
    return transcripts, silence
