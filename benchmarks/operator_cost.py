"""Measures the operator: `start`, seconds from kubectl apply to the first token; `rest`, memory and CPU when idle.

python benchmarks/operator_cost.py start --runs 5      on a cluster with the operator and the images
python benchmarks/operator_cost.py rest --count 50     an API server suffices; starts its own operator
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from orca_bench.circumstances import circumstances
from orca_bench.cpu_times import cpu_seconds

EXAMPLE = Path(__file__).parents[1] / "examples" / "demo-cpu.yaml"
BOUND_SECONDS = 120.0


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    """Run kubectl in the namespace `default`; exit with its error message if it fails."""
    done = subprocess.run(["kubectl", *arguments], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def until(holds: Callable[[], bool], interval: float = 0.05) -> float:
    """Wait until `holds` returns True; return the seconds."""
    begin = time.monotonic()
    while not holds():
        if time.monotonic() - begin > BOUND_SECONDS:
            sys.exit(f"error: timeout after {BOUND_SECONDS:.0f} s")
        time.sleep(interval)
    return time.monotonic() - begin


def measure_start(runs: int) -> dict[str, Any]:
    """Apply the demo and send requests to its Service from this machine (a cluster node) until one succeeds."""
    times = []
    for _ in range(runs):
        kubectl("apply", "-f", str(EXAMPLE))
        begin = time.monotonic()
        until(lambda: bool(kubectl("get", "service", "demo", "-o", "name", "--ignore-not-found").strip()))
        address = kubectl("get", "service", "demo", "-o", "jsonpath={.spec.clusterIP}")
        until(functools.partial(answers, address))
        times.append(time.monotonic() - begin)
        kubectl("delete", "orca", "demo")
        until(lambda: not kubectl("get", "pods", "-l", "orca-serving.io/deployment=demo", "-o", "name").strip(), 0.5)
    return {"seconds_to_first_token": [round(value, 2) for value in times], "median": statistics.median(times)}


def answers(address: str) -> bool:
    """Return True if the server at `address` generates a token."""
    body = json.dumps({"prompt": "Hello", "max_tokens": 1}).encode()
    request = urllib.request.Request(
        f"http://{address}/v1/completions", data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def measure_rest(count: int, seconds: int) -> dict[str, Any]:
    """Measure memory and CPU of an operator with `count` unchanged deployments."""
    resource = yaml.safe_load(EXAMPLE.read_text())
    names = [f"rest-{index}" for index in range(count)]
    for name in names:
        resource["metadata"]["name"] = name
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump(resource))
    operator = subprocess.Popen(
        [sys.executable, "-m", "orca_master.cli", "operator", "--namespace", "default"], stderr=subprocess.DEVNULL
    )
    try:

        def settled() -> bool:
            items = json.loads(kubectl("get", "orca", "-o", "json"))["items"]
            return all(item.get("status", {}).get("conditions") for item in items)

        settling = until(settled, 0.5)
        time.sleep(10)
        before = cpu_seconds(operator.pid)
        time.sleep(seconds)
        used = cpu_seconds(operator.pid) - before
        status = Path(f"/proc/{operator.pid}/status").read_text().splitlines()
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
        return {
            "deployments": count,
            "seconds_until_all_have_a_status": round(settling, 1),
            "resident_mib": round(resident / 1024, 1),
            "cpu_percent_of_one_core": round(100 * used / seconds, 2),
            "over_seconds": seconds,
        }
    finally:
        operator.terminate()
        operator.wait(20)
        for name in names:
            kubectl("delete", "orca", name, "--wait=false")


def main() -> None:
    """Print figures and circumstances as a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("start", "rest"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=60)
    arguments = parser.parse_args()
    if arguments.what == "start":
        figures = measure_start(arguments.runs)
    else:
        figures = measure_rest(arguments.count, arguments.seconds)
    server = json.loads(kubectl("get", "--raw", "/version"))["gitVersion"]
    print(json.dumps({
        **circumstances(None), "kubernetes": server, **figures,
    }, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
