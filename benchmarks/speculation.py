"""Measures speculative decoding by prompt lookup: answers that copy, that copy in part, and that do not.

    python benchmarks/speculation.py [--batch 1 16] [--kinds copies …] [--tokens 8] [--generated 128] [--rounds 5]
        [--draft-layers N] [-- OPTIONS OF serve]

With `--draft-layers` a draft model drafts: the first N of the model's twelve layers. The others add little, so that it
is often right; and a pair of models with nothing in common, where no draft is ever right, shows what trying costs.

Two servers, one with `--speculative-tokens`, take turns on the same cores; gpt2 of 110 M random weights. BATCH requests
at a time, of 64 prompt tokens and GENERATED more: greedy, as random weights soon repeat themselves then; at
temperature 1 with a bias to three tokens, so that some drafts are right by chance; at temperature 1, without
repetitions; and one of the requests greedy, the others at temperature 1, unless BATCH is 1. Printed: medians of
tokens/s, the ratio of the rounds, median with the smallest and the largest (from nine rounds on also the confidence
interval of the median), and how many of the drafted tokens were accepted.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import torch
from orca_bench.burst import alternate
from orca_bench.circumstances import circumstances, line
from orca_bench.random_models import save_model, save_pair
from orca_bench.rounds import ratio
from orca_bench.servers import serve, split, unwind_on_sigterm
from orca_bench.traces import random_tokens
from prometheus_client.parser import text_string_to_metric_families
from transformers import GPT2Config, GPT2LMHeadModel

PROMPT = 64
"""Prompt tokens of a request."""
ONE_COPIES = "one copies"
KINDS = {"copies": (0.0, 0.0, 0), "in part": (1.0, 1.0, 3), "no copies": (1.0, 1.0, 0), ONE_COPIES: (0.0, 1.0, 0)}
"""Temperatures of the first and of the other requests; how many tokens answers are confined to by a bias, 0: all."""
BIAS = 90.0


def bodies(model: str, batch: int, generated: int, kind: str, seed: int) -> list[dict[str, Any]]:
    """Return `batch` requests of `generated` tokens each."""
    source = random.Random(f"speculation {seed}")
    prompts = [random_tokens(source, PROMPT) for _ in range(batch)]
    first, others, allowed = KINDS[kind]
    bias = {str(token): BIAS for token in random_tokens(source, allowed)}
    common = {"model": model, "max_tokens": generated, "logit_bias": bias}
    return [
        {**common, "prompt": prompt, "temperature": others if number else first}
        for number, prompt in enumerate(prompts)
    ]


def drafted(url: str) -> tuple[float, float]:
    """Return the numbers of drafted and of accepted tokens so far."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=60).text)
    values = {family.name: family.samples[0].value for family in families if family.name.startswith("orca:spec_decode")}
    return values["orca:spec_decode_num_draft_tokens"], values["orca:spec_decode_num_accepted_tokens"]


def compare(name: str, urls: Sequence[str], requests: Callable[[int], list[dict[str, Any]]], rounds: int) -> None:
    """Print how the first server, which drafts, compares with the second."""
    speculating, plain = urls
    before = drafted(speculating)
    rates = alternate(dict.fromkeys(urls, requests), rounds)
    count, accepted = (after - first for after, first in zip(drafted(speculating), before, strict=True))
    print(
        f"{name}: {statistics.median(rates[speculating]):.1f} tokens/s, without drafts "
        f"{statistics.median(rates[plain]):.1f}: {ratio(rates[speculating], rates[plain])}; "
        f"{accepted:.0f} of {count:.0f} drafted tokens accepted",
        flush=True,
    )


def main() -> None:
    """Print the figures."""
    own, options = split(sys.argv[1:], ())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16], help="requests at once (1 16)")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="kinds of answers (all)")
    parser.add_argument("--tokens", type=int, default=8, help="drafted tokens per request and iteration (8)")
    parser.add_argument("--generated", type=int, default=128, help="generated tokens of a request (128)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draft-layers", type=int, default=0, help="layers of a draft model, 0: none (0)")
    arguments = parser.parse_args(own)
    unwind_on_sigterm()
    print(line(circumstances(0)))
    with tempfile.TemporaryDirectory() as folder:
        model, close, other = (Path(folder) / name for name in ("model", "close", "other"))
        if arguments.draft_layers:
            save_pair(model, close, arguments.draft_layers)
            torch.manual_seed(1)
            GPT2LMHeadModel(GPT2Config.from_pretrained(close)).save_pretrained(other)
        else:
            save_model(model, "gpt2")
        drafting = ["--speculative-tokens", str(arguments.tokens)]
        pairs = {"": drafting}
        if arguments.draft_layers:
            pairs = {
                f"{draft.name} draft model, ": [*drafting, "--speculative-model", str(draft)]
                for draft in (close, other)
            }
        for name, speculation in pairs.items():
            with contextlib.ExitStack() as servers:
                urls = [servers.enter_context(serve(model, [*options, *each]))[1] for each in (speculation, [])]
                for batch in arguments.batch:
                    for kind in [each for each in arguments.kinds if batch > 1 or each != ONE_COPIES]:
                        requests = partial(bodies, model.name, batch, arguments.generated, kind)
                        compare(f"{name}batch {batch}, {kind}", urls, requests, arguments.rounds)


if __name__ == "__main__":
    main()
