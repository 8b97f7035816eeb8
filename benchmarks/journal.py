"""Measures what `--journal` costs in tokens per second, beside the same server without it.

    python benchmarks/journal.py [MODEL] [--streams 32] [--tokens 200] [--rounds 10] [-- -pp 2]

Both servers run at the same time on this machine, and only one of them has work: the rounds alternate. A round is
`--streams` streams at once. The journal lies in a temporary folder.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from orca_bench.circumstances import circumstances, line
from orca_bench.servers import DEMO, TWO_PARTITIONS, serve, split, unwind_on_sigterm
from recovery import play


def rate(url: str, streams: int, num_tokens: int) -> float:
    """Return the tokens per second of a round."""
    begun = time.monotonic()
    transcripts, _ = asyncio.run(play(url, streams, num_tokens))
    seconds = time.monotonic() - begun
    if errors := {transcript.error for transcript in transcripts if transcript.error}:
        raise SystemExit(f"error: {errors}")
    return sum(len(transcript.tokens) for transcript in transcripts) / seconds


def main() -> None:
    """Print the rates and their ratio."""
    arguments, options = split(sys.argv[1:], TWO_PARTITIONS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=DEMO)
    parser.add_argument("--streams", type=int, default=32, help="concurrent streams (32)")
    parser.add_argument("--tokens", type=int, default=200, help="tokens per stream (200)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each server (10)")
    settings = parser.parse_args(arguments)
    unwind_on_sigterm()
    print(line(circumstances(None)))
    with (
        tempfile.TemporaryDirectory(prefix="orca-journal-") as folder,
        serve(settings.model, options) as (_, without),
        serve(settings.model, [*options, "--journal", folder]) as (_, with_journal),
    ):
        rates: dict[str, list[float]] = {without: [], with_journal: []}
        for index in range(settings.rounds + 1):
            for url in rates if index % 2 else reversed(rates):
                rates[url].append(rate(url, settings.streams, settings.tokens))
        before, after = (statistics.median(rates[url][1:]) for url in rates)  # the first round warms up
        ratios = sorted(second / first for first, second in zip(*(rates[url][1:] for url in rates), strict=True))
    print(
        f"without {before:.0f} tokens/s, with {after:.0f} tokens/s (medians of {settings.rounds} rounds); "
        f"ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    )


if __name__ == "__main__":
    main()
