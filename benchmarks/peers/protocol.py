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

    `weights`: none (type `dtype`), int8 or int4. `cache`: auto (type `dtype`) or int8. `activations`: the same, in
    products. `compiled`: whether the model is compiled by torch.compile. `prefix_caching`: whether prompts share the
    keys and values of equal beginnings; each run has other tokens then, in prompts of the same lengths that share as
    much. A peer reads those of the five that it has settings for (orca_bench.peer_settings).
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
    activations: str = "auto"
    compiled: bool = False
    prefix_caching: bool = False

    def prompts_of(self, number: int) -> list[list[int]]:
        """Return the prompts of a run, counted from 0."""
        if not self.prefix_caching:
            return self.prompts
        # Prompts of random tokens (orca_bench.traces.random_tokens): a multiple of the step is never their whole range.
        first, step, span = 10, 37, 991
        return [[first + (token - first + step * number) % span for token in prompt] for prompt in self.prompts]


Run = Callable[[list[list[int]]], list[int]]
"""Generates the outputs of prompts; returns the number of generated tokens of each request."""


def serve(load: Callable[[Job], Run]) -> None:
    """Call `load` with the job, then its result for each line `run`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path, help="JSON with the fields of Job")
    fields = json.loads(parser.parse_args().job.read_text(encoding="utf-8"))
    job = Job(**{**fields, "model": Path(fields["model"])})
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries and their processes print to standard output
    run = load(job)
    print("ready", file=replies, flush=True)
    for number, line in enumerate(sys.stdin):
        if line.strip() != "run":
            break
        prompts = job.prompts_of(number)
        begin = time.perf_counter()
        lengths = run(prompts)
        seconds = time.perf_counter() - begin
        if lengths != job.outputs:
            sys.exit(f"generated {sum(lengths)} tokens, expected {sum(job.outputs)}")
        print(json.dumps({"seconds": seconds}), file=replies, flush=True)
