"""What run.py and a peer say to each other: the peer loads, says `ready`, and answers every `run` with its seconds.

A peer runs in an environment of its own, so this file needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """Offer all `prompts` (token ids) at once; request i generates exactly `outputs[i]` tokens, greedily."""

    model: Path
    dtype: str
    batch_size: int
    threads: int
    device: str
    prompts: list[list[int]]
    outputs: list[int]


def serve(load: Callable[[Job], Callable[[], list[int]]]) -> None:
    """Call `load` with the job, then what it returned for every `run`; that returns tokens generated per request."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path, help="JSON with the fields of Job")
    fields = json.loads(parser.parse_args().job.read_text(encoding="utf-8"))
    job = Job(**{**fields, "model": Path(fields["model"])})
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print, and so do their processes
    run = load(job)
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        if line.strip() != "run":
            break
        begin = time.perf_counter()
        lengths = run()
        seconds = time.perf_counter() - begin
        if lengths != job.outputs:
            sys.exit(f"it generated {sum(lengths)} tokens, {sum(job.outputs)} were asked for")
        print(json.dumps({"seconds": seconds}), file=replies, flush=True)
