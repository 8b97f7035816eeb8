"""Traces: arrival, prompt and output length of requests. Pure: the same seed gives the same requests.

`paper` is the evaluation's synthetic trace (paper, section 6.2): input lengths U(32, 512), output lengths U(1, 128),
Poisson arrivals. `homogeneous` has requests of equal lengths (Figure 11). Recorded traces are read from ShareGPT-style
JSON or from CSV.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

PAPER_INPUT = (32, 512)
PAPER_OUTPUT = (1, 128)
FIRST_TOKEN_ID, LAST_TOKEN_ID = 10, 1000
"""Range of the token ids of prompts: present in most vocabularies and rarely special tokens."""


class TraceError(Exception):
    """A trace that cannot be read or created; the message names the option or the file."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request; `arrival` in seconds after the start. `prompt` is token ids, or text if the trace contains text."""

    arrival: float
    prompt: tuple[int, ...] | str
    input_length: int
    output_length: int


def random_tokens(source: random.Random, count: int) -> list[int]:
    """Return `count` token ids for a prompt."""
    return [source.randint(FIRST_TOKEN_ID, LAST_TOKEN_ID) for _ in range(count)]


def synthetic(name: str, count: int, seed: int, lengths: tuple[int, int] = (32, 32)) -> list[TracedRequest]:
    """Return `count` requests without arrivals: `paper`, or `homogeneous` with `lengths` (input, output)."""
    source = random.Random(f"lengths {seed}")
    requests = []
    for _ in range(count):
        input_length, output_length = lengths
        if name == "paper":
            input_length, output_length = source.randint(*PAPER_INPUT), source.randint(*PAPER_OUTPUT)
        prompt = tuple(random_tokens(source, input_length))
        requests.append(TracedRequest(0.0, prompt, input_length, output_length))
    return requests


def shared_prefixes(count: int, seed: int, prefix_length: int) -> list[TracedRequest]:
    """Return requests without arrivals of three groups, each with a common prefix, then U(16, 128) tokens of their own.

    Output lengths are U(1, 64).
    """
    source = random.Random(f"shared {seed}")
    prefixes = [random_tokens(source, prefix_length) for _ in range(3)]
    requests = []
    for number in range(count):
        prompt = (*prefixes[number % 3], *random_tokens(source, source.randint(16, 128)))
        requests.append(TracedRequest(0.0, prompt, len(prompt), source.randint(1, 64)))
    return requests


def with_new_prompts(requests: Sequence[TracedRequest], seed: int, use: str) -> list[TracedRequest]:
    """Return the requests with other prompts of the same lengths, so that a server's prefix cache has none of them.

    Token ids are random, from `seed` and `use`, a name of the requests' use; `use` is put in front of a text, which is
    some tokens longer then.
    """
    source = random.Random(f"{use} {seed}")
    return [
        replace(
            request,
            prompt=f"{use}: {request.prompt}"
            if isinstance(request.prompt, str)
            else tuple(random_tokens(source, request.input_length)),
        )
        for request in requests
    ]


def shortened(requests: Sequence[TracedRequest], scale: float) -> list[TracedRequest]:
    """Return the requests with input and output lengths scaled by `scale`, at least one token each."""
    scaled = []
    for request in requests:
        inputs, outputs = (max(1, round(scale * length)) for length in (request.input_length, request.output_length))
        scaled.append(replace(request, prompt=request.prompt[:inputs], input_length=inputs, output_length=outputs))
    return scaled


def with_arrivals(requests: Sequence[TracedRequest], rate: float, burstiness: float, seed: int) -> list[TracedRequest]:
    """Return the requests with arrivals at `rate` per second; infinite: all at once.

    Gaps are gamma-distributed with shape `burstiness`: 1 is a Poisson process, smaller values are burstier.
    """
    if rate == float("inf"):
        return [replace(request, arrival=0.0) for request in requests]
    source, arrival, timed = random.Random(f"arrivals {seed}"), 0.0, []
    for request in requests:
        timed.append(replace(request, arrival=arrival))
        arrival += source.gammavariate(burstiness, 1 / (rate * burstiness))
    return timed


def recorded(path: Path, count: int, seed: int) -> tuple[list[TracedRequest], bool]:
    """Read a recorded trace; return its first `count` requests, and True if the trace contains arrivals.

    CSV: columns for arrival (seconds, or dates as in the Azure traces), input and output length. JSON: a list of
    conversations in ShareGPT's format, whose first two turns become prompt and output length (in words). Raises
    TraceError.
    """
    try:
        if path.suffix == ".csv":
            return _csv(path, count, seed), True
        return _conversations(json.loads(path.read_text(encoding="utf-8")), count), False
    except OSError as error:
        raise TraceError(f"--trace {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise TraceError(f"--trace {path}: not a trace: {error!r}") from error


ARRIVAL = ("arrival", "arrived_at", "timestamp")
INPUT = ("input", "contexttokens", "num_prefill_tokens", "input_length")
OUTPUT = ("output", "generatedtokens", "num_decode_tokens", "output_length")


def _csv(path: Path, count: int, seed: int) -> list[TracedRequest]:
    source = random.Random(f"prompts {seed}")
    requests: list[TracedRequest] = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if len(requests) == count:
                break
            named = {str(key).strip().lower(): value for key, value in row.items()}
            arrival, length = _seconds(_pick(named, ARRIVAL)), int(_pick(named, INPUT))
            prompt = tuple(random_tokens(source, length))
            requests.append(TracedRequest(arrival, prompt, length, int(_pick(named, OUTPUT))))
    if not requests:
        raise ValueError("it has no rows")
    requests.sort(key=lambda request: request.arrival)
    return [replace(request, arrival=request.arrival - requests[0].arrival) for request in requests]


def _pick(row: dict[str, str], names: tuple[str, ...]) -> str:
    for name in names:
        if name in row:
            return row[name]
    raise KeyError(f"none of the columns {', '.join(names)}")


def _seconds(text: str) -> float:
    """Parse a number of seconds or a date as seconds."""
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text.strip()[:26]).timestamp()


def _conversations(entries: list[dict[str, Any]], count: int) -> list[TracedRequest]:
    requests: list[TracedRequest] = []
    for entry in entries:
        turns = entry.get("conversations") or entry.get("conversation") or []
        if len(turns) < 2 or len(requests) == count:
            continue
        prompt, answer = str(turns[0]["value"]), str(turns[1]["value"])
        words = max(1, len(answer.split()))
        requests.append(TracedRequest(0.0, prompt, max(1, len(prompt.split())), words))
    if not requests:
        raise ValueError("no conversation of two turns")
    return requests
