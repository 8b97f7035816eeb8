"""schemathesis on every route of `orca serve` with the demo model, for a given time.

    PYTHONPATH=tests python tests/fuzz/fuzz_http.py [--seconds 60]

Bodies that follow the schema and bodies that do not are mixed. Exit code 1: an answer was a 5xx, or a request after the
last was not answered.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import httpx
from support.schemathesis_run import run_schemathesis
from support.served import serve

DEMO = Path(__file__).parents[2] / "examples" / "demo-model"
END_SECONDS = 300.0
"""For what schemathesis does beyond its time: start, the last request, its report."""
EXAMPLES = 1_000_000
"""More than any time is enough for."""


def main() -> int:
    """Print the calls of each route by status; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    seconds = parser.parse_args().seconds
    limits = ["--max-time", str(seconds), "--max-examples", str(EXAMPLES)]
    with (
        tempfile.TemporaryDirectory(prefix="orca-fuzz-") as folder,
        serve(DEMO, "--request-timeout", "3", "--disable-log-requests") as served,
    ):
        calls, report = run_schemathesis(served.url, Path(folder), limits, seconds + END_SECONDS)
        sound = {"prompt": "a", "max_tokens": 1}
        after = httpx.post(f"{served.url}/v1/completions", json=sound, timeout=60).status_code
    for route in sorted({call.route for call in calls}):
        statuses = Counter(call.status for call in calls if call.route == route)
        print(f"{route}: {', '.join(f'{count} x {status}' for status, count in sorted(statuses.items()))}")
    print(f"{len(calls)} calls in {seconds} s; a request after them: {after}")
    print(report, end="")
    return int(bool(report) or after != 200 or not calls or any(call.status >= 500 for call in calls))


if __name__ == "__main__":
    sys.exit(main())
