"""Measures the operator: `start`, seconds from kubectl apply to the first token; `rest`, what many deployments cost.

python benchmarks/operator_cost.py start --runs 5      on a cluster with the operator and the images
python benchmarks/operator_cost.py rest --count 200    an API server suffices; starts its own operator

`rest` creates the OrcaDeployments, edits all of them, and then leaves them alone. It prints the passes and their
durations in each of the three times, the seconds until every status is current, and memory, CPU and writes at rest.
Durations are bounds of the operator's own histogram. Without pods an OrcaDeployment is never ready, so that a pass
follows every five seconds; with `--suspended` it rests as if it were serving, but asks no master.
"""

from __future__ import annotations

import argparse
import functools
import json
import socket
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
from orca_bench.operator_metrics import Sample, read

EXAMPLE = Path(__file__).parents[1] / "examples" / "demo-cpu.yaml"
BOUND_SECONDS = 120.0
MANY_SECONDS = 900.0
"""Bound of the creation and of the edit of all OrcaDeployments of `rest`."""
SETTLING_SECONDS = 60
"""Between the last edit and the measurement at rest."""
GROUP = 50
"""Figures at rest are also given for so many OrcaDeployments."""


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    """Run kubectl in the namespace `default`; exit with its error message if it fails."""
    done = subprocess.run(["kubectl", *arguments], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def until(holds: Callable[[], bool], interval: float = 0.05, bound: float = BOUND_SECONDS) -> float:
    """Wait until `holds` returns True, at most `bound` seconds; return the seconds."""
    begin = time.monotonic()
    while not holds():
        if time.monotonic() - begin > bound:
            sys.exit(f"error: timeout after {bound:.0f} s")
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


def measure_rest(count: int, seconds: int, suspended: bool) -> dict[str, Any]:
    """Measure an operator with `count` deployments: their creation, an edit of all, and the time after it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    spec = {"suspend": suspended}
    apply_all(count, spec)
    command = [sys.executable, "-m", "orca_master.cli", "operator", "--namespace", "default"]
    operator = subprocess.Popen([*command, "--metrics-port", str(port)], stderr=subprocess.DEVNULL)
    try:
        created_after = until(lambda: all(map(is_current, deployments())), 1, MANY_SECONDS)
        created = sample(port)
        apply_all(count, spec | {"scheduler": {"maxBatchSize": 7}, "service": {"labels": {"edited": "yes"}}})
        edited_after = until(lambda: all(map(is_current, deployments())), 1, MANY_SECONDS)
        edited = sample(port)
        time.sleep(SETTLING_SECONDS)
        before, cpu = sample(port), cpu_seconds(operator.pid)
        time.sleep(seconds)
        rest, used = sample(port) - before, cpu_seconds(operator.pid) - cpu
        resident = resident_mib(operator.pid)
        return {
            "deployments": count,
            "suspended": suspended,
            "creation": {"seconds_until_all_have_a_status": round(created_after, 1), **passes(created)},
            "edit": {"seconds_until_all_have_a_status": round(edited_after, 1), **passes(edited - created)},
            "rest": {
                "seconds": seconds,
                **passes(rest),
                "resident_mib": round(resident, 1),
                f"resident_mib_per_{GROUP}": round(resident * GROUP / count, 1),
                "cpu_percent_of_one_core": round(100 * used / seconds, 2),
                f"cpu_percent_of_one_core_per_{GROUP}": round(100 * used / seconds * GROUP / count, 2),
            },
        }
    finally:
        operator.terminate()
        operator.wait(20)
        kubectl("delete", "orca", *map(name_of, range(count)), "--wait=false")


def name_of(index: int) -> str:
    """Return the name of an OrcaDeployment of `rest`."""
    return f"rest-{index}"


def apply_all(count: int, changes: dict[str, Any]) -> None:
    """Apply `count` OrcaDeployments of the example, with top-level fields of the spec replaced, by one kubectl."""
    resource = yaml.safe_load(EXAMPLE.read_text())
    items = [
        {
            **resource,
            "metadata": {**resource["metadata"], "name": name_of(index)},
            "spec": {**resource["spec"], **changes},
        }
        for index in range(count)
    ]
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(items))


def deployments() -> list[dict[str, Any]]:
    """Return all OrcaDeployments."""
    items: list[dict[str, Any]] = json.loads(kubectl("get", "orca", "-o", "json"))["items"]
    return items


def is_current(deployment: dict[str, Any]) -> bool:
    """Whether the status speaks of the latest generation."""
    return bool(deployment.get("status", {}).get("observedGeneration") == deployment["metadata"]["generation"])


def sample(port: int) -> Sample:
    """Read the operator's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return read(answer.read().decode())


def passes(since: Sample) -> dict[str, float]:
    """Return passes, their durations and the writes of a time."""
    return {
        "passes": since.passes,
        "failed": since.failed,
        "p50_seconds_at_most": since.percentile(50),
        "p99_seconds_at_most": since.percentile(99),
        "writes": since.writes,
    }


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) / 1024


def main() -> None:
    """Print figures and circumstances as a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("start", "rest"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--suspended", action="store_true")
    arguments = parser.parse_args()
    if arguments.what == "start":
        figures = measure_start(arguments.runs)
    else:
        figures = measure_rest(arguments.count, arguments.seconds, arguments.suspended)
    server = json.loads(kubectl("get", "--raw", "/version"))["gitVersion"]
    print(json.dumps({
        **circumstances(None), "kubernetes": server, **figures,
    }, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
