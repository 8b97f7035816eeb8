"""Command-line options of the scheduler: limits of an iteration and of the K/V cache, policies and extensions."""

from __future__ import annotations

import argparse

from orca_contract.kv_blocks import BLOCK_SIZE

from orca_master.commands.argument_types import count, milliseconds, num_tokens, positive, slots

ADMISSIONS = ("reserve", "paged")
SCHEDULING_POLICIES = ("fcfs", "priority")
TARGET_ITL_MILLISECONDS = 200
"""Default with one partition (docs/benchmarks/peers.md, "Through HTTP, beside vLLM's server")."""


def target_itl(milliseconds: float | None, pipeline_parallel_size: int) -> float | None:
    """Return the seconds of `--target-itl`, or of its default for so many partitions; None for no target."""
    if milliseconds is None:
        milliseconds = TARGET_ITL_MILLISECONDS if pipeline_parallel_size == 1 else 0
    return milliseconds / 1000 or None


def add_scheduling_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the scheduler."""
    parser.add_argument(
        "--max-batch-size",
        "--max-num-seqs",
        type=positive,
        default=32,
        help="maximum requests per iteration, Algorithm 1's max_bs (32)",
    )
    parser.add_argument(
        "--token-budget",
        "--max-num-batched-tokens",
        type=num_tokens,
        default=2048,
        help="maximum input tokens per iteration; longer prompts are computed in chunks (2048)",
    )
    parser.add_argument(
        "--target-itl",
        type=milliseconds,
        metavar="MILLISECONDS",
        help="target of the time between the tokens of an answer: beside answers, an iteration has only so many tokens "
        "of prompts as fit into this time by the measured costs, but prompts always have half of the time; 0: no "
        f"target ({TARGET_ITL_MILLISECONDS} with one partition; with several 0, and prompts are cut so that iterations "
        "take equally long)",
    )
    parser.add_argument(
        "--kv-slots",
        type=slots,
        help=f"K/V slots per pipeline, one per token (Algorithm 1's n_slots), rounded down to blocks of {BLOCK_SIZE} "
        "(sized from free memory)",
    )
    parser.add_argument(
        "--admission",
        choices=ADMISSIONS,
        default="reserve",
        help="reserve: allocate K/V slots for all tokens of a request at admission, as in the paper; paged: on demand, "
        "preempting the youngest requests (reserve)",
    )
    parser.add_argument(
        "--scheduling-policy",
        choices=SCHEDULING_POLICIES,
        default="fcfs",
        help="order of requests: by arrival, or by their field priority and waiting time (fcfs)",
    )
    parser.add_argument(
        "--no-lookahead",
        action="store_true",
        help="send at most as many iterations as partitions before the result of the first, as in the paper; without "
        "this option one more, where it does not depend on that result",
    )
    parser.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="requests of the same API key share the K/V blocks of a common prefix, which is computed once (on)",
    )
    parser.add_argument(
        "--speculative-tokens",
        type=count,
        default=0,
        metavar="N",
        help="speculative decoding: most drafted tokens per request and iteration, those of --speculative-model or "
        "else those that followed the same tokens earlier in prompt or answer; answers stay the same, and drafts that "
        "do not pay are not computed; 0: none (0)",
    )
    parser.add_argument(
        "--no-balanced-batches",
        action="store_true",
        help="Algorithm 1 as printed: with several partitions, do not split few requests into a batch per partition, "
        "cut prompts only by the token budget, and compute one part of a prompt at a time",
    )
