"""Protocol between run.py and a peer: the peer loads, prints `ready`, and answers each `run` with its seconds.

Each peer has its own virtual environment, so this file uses only the standard library.
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
    """A job: all `prompts` (token ids) arrive at once; request i generates exactly `outputs[i]` tokens, greedily.

    `weights`: none (type `dtype`), int8 or int4. `cache`: auto (type `dtype`) or int8. `compiled`: whether the model is
    compiled by torch.compile. A peer reads those of the three that it has settings for (orca_bench.peer_settings).
    """

    model: Path
    dtype: str
    batch_size: int
    threads: int
    device: str
    prompts: list[list[int]]
    outputs: list[int]
    weights: str = "none"
    cache: str = "auto"
    compiled: bool = False


def serve(load: Callable[[Job], Callable[[], list[int]]]) -> None:
    """Call `load` with the job, then its result for each `run`, which returns the generated tokens per request."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path, help="JSON with the fields of Job")
    fields = json.loads(parser.parse_args().job.read_text(encoding="utf-8"))
    job = Job(**{**fields, "model": Path(fields["model"])})
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries and their processes print to standard output
    run = load(job)
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        if line.strip() != "run":
            break
        begin = time.perf_counter()
        lengths = run()
        seconds = time.perf_counter() - begin
        if lengths != job.outputs:
            sys.exit(f"generated {sum(lengths)} tokens, expected {sum(job.outputs)}")
        print(json.dumps({"seconds": seconds}), file=replies, flush=True)
