"""Computes the figures of a run from its outcomes. Pure. Keys as in `vllm bench serve --save-result`, for its scripts.

`median_normalized_latency_ms` is the paper's metric: end-to-end latency divided by the number of generated tokens.
Percentiles interpolate linearly between ranks. Times in milliseconds; TPOT is the mean time per token after the first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from orca_bench.client import Outcome

PERCENTILES = (90, 99)
SLO_NAMES = ("ttft", "tpot", "e2el")


def parse_slo(text: str) -> dict[str, float]:
    """Parse `ttft:500,tpot:50` (milliseconds); raise ValueError with the invalid part."""
    limits = {}
    for part in text.split(","):
        name, _, value = part.partition(":")
        if name not in SLO_NAMES or not re.fullmatch(r"\d+(\.\d+)?", value):
            raise ValueError(f"{part!r}: NAME:MILLISECONDS is expected, with a NAME of {', '.join(SLO_NAMES)}")
        limits[name] = float(value)
    return limits


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile `share` (0 to 100) of `values`; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = share / 100 * (len(ordered) - 1)
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def latencies(outcome: Outcome) -> dict[str, float]:
    """Return the latencies of an answered request in milliseconds; `tpot` only for more than one token."""
    end_to_end = (outcome.tokens[-1] - outcome.sent) * 1e3
    first = (outcome.tokens[0] - outcome.sent) * 1e3
    generated = num_output(outcome)
    result = {"ttft": first, "e2el": end_to_end, "normalized_latency": end_to_end / generated}
    if generated > 1:
        result["tpot"] = (end_to_end - first) / (generated - 1)
    return result


def num_output(outcome: Outcome) -> int:
    """Return the number of generated tokens: the server's count, else the number of events."""
    return outcome.num_output or len(outcome.tokens)


def report(outcomes: Sequence[Outcome], slo: dict[str, float]) -> dict[str, Any]:
    """Return the figures of one run."""
    answered = [outcome for outcome in outcomes if not outcome.error]
    failed = [outcome for outcome in outcomes if outcome.error]
    begin = min((outcome.planned for outcome in outcomes), default=0.0)
    duration = max((outcome.tokens[-1] for outcome in answered), default=begin) - begin
    measured = [latencies(outcome) for outcome in answered]
    gaps = [(later - earlier) * 1e3 for outcome in answered for earlier, later in pairwise(outcome.tokens)]
    num_input = sum(outcome.num_input or outcome.request.input_length for outcome in answered)
    generated = sum(map(num_output, answered))
    good = sum(all(request.get(name, 0.0) <= limit for name, limit in slo.items()) for request in measured)
    lags = [outcome.lag * 1e3 for outcome in outcomes if outcome.sent]
    figures: dict[str, Any] = {
        "duration": duration,
        "completed": len(answered),
        "failed": len(failed),
        "failures": dict(Counter(outcome.error.partition(":")[0] for outcome in failed)),
        "first_errors": [outcome.error for outcome in failed[:5]],
        "total_input_tokens": num_input,
        "total_output_tokens": generated,
        "request_throughput": _per(len(answered), duration),
        "request_goodput": _per(good, duration) if slo else None,
        "output_throughput": _per(generated, duration),
        "total_token_throughput": _per(num_input + generated, duration),
        "mean_lag_ms": sum(lags) / len(lags) if lags else 0.0,
        "p99_lag_ms": percentile(lags, 99),
        "max_lag_ms": max(lags, default=0.0),
    }
    for name in ("ttft", "tpot", "e2el", "normalized_latency"):
        figures |= _summary(name, [request[name] for request in measured if name in request])
    return figures | _summary("itl", gaps)


def _per(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _summary(name: str, values: list[float]) -> dict[str, float]:
    summary = {
        f"mean_{name}_ms": sum(values) / len(values) if values else 0.0,
        f"median_{name}_ms": percentile(values, 50),
    }
    return summary | {f"p{share}_{name}_ms": percentile(values, share) for share in PERCENTILES}


ROWS = (
    ("requests answered / failed", "completed", "failed"),
    ("requests/s", "request_throughput"),
    ("generated tokens/s", "output_throughput"),
    ("normalised latency, median / p99 (ms/token)", "median_normalized_latency_ms", "p99_normalized_latency_ms"),
    ("time to first token, median / p99 (ms)", "median_ttft_ms", "p99_ttft_ms"),
    ("time per output token, median / p99 (ms)", "median_tpot_ms", "p99_tpot_ms"),
    ("inter-token latency, median / p99 (ms)", "median_itl_ms", "p99_itl_ms"),
    ("end-to-end, median / p99 (ms)", "median_e2el_ms", "p99_e2el_ms"),
    ("sent later than planned, mean / max (ms)", "mean_lag_ms", "max_lag_ms"),
)


def table(figures: dict[str, Any]) -> str:
    """Format the figures as a text table."""
    rows = list(ROWS)
    if figures["request_goodput"] is not None:
        rows.insert(2, ("requests/s within the limits", "request_goodput"))
    lines = []
    for title, *keys in rows:
        values = (figures[key] for key in keys)
        shown = " / ".join(str(value) if isinstance(value, int) else f"{value:.2f}" for value in values)
        lines.append(f"{title:<46}{shown}")
    return "\n".join(lines + [f"  {kind}: {count}" for kind, count in figures["failures"].items()])
