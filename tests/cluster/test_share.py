"""A worker takes the share of its node that its pod was given: threads by the CPU limit, K/V memory by the request."""

from __future__ import annotations

import json
import re
from typing import Any

from support.kubernetes import Namespace, demo_spec, worker_settings

NUM_REQUESTS, NUM_TOKENS = 24, 64
RANK = """
import json, os, pathlib
groups = pathlib.Path("/sys/fs/cgroup")
folders = [groups, groups / "cpu", groups / "cpu,cpuacct"]  # version 2, or 1 under either name
stat = next(folder / "cpu.stat" for folder in folders if (folder / "cpu.stat").is_file())
counters = {name: int(value) for name, value in map(str.split, stat.read_text().splitlines())}
ranks = {}
for process in pathlib.Path("/proc").iterdir():
    if not process.name.isdigit() or b"\\0orca_worker.rank\\0" not in (process / "cmdline").read_bytes():
        continue
    busy = []
    for thread in (process / "task").iterdir():
        fields = (thread / "stat").read_text().rpartition(")")[2].split()
        busy.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    ranks[process.name] = sorted(busy, reverse=True)
print(json.dumps({"periods": counters["nr_periods"], "throttled": counters["nr_throttled"], "ranks": ranks,
                  "cores": len(os.sched_getaffinity(0))}))
"""
"""Runs in a worker's pod: periods of its CPU quota, and for each rank the CPU seconds of every thread."""


def logged_threads(log: str) -> dict[str, str]:
    """Return what the worker said of its ranks' threads."""
    return dict(re.findall(r"(rank \d+): (.+)$", log, re.MULTILINE))


def under_a_limit_of_one_cpu(namespace: Namespace, name: str, env: list[dict[str, str]]) -> dict[str, Any]:
    """Deploy the demo with a limit of one CPU, load it, print its periods, and return what RANK prints."""
    resources = {"requests": {"cpu": "10m", "memory": "1Gi"}, "limits": {"cpu": "1"}}
    namespace.deploy(demo_spec(worker=worker_settings(env=env, resources=resources)), name)
    namespace.wait_ready(name)
    pods = [pod["metadata"]["name"] for pod in namespace.pods(name)]
    pod = "pod/" + next(pod for pod in pods if "master" not in pod)
    before = json.loads(namespace.kubectl("exec", pod, "--", "python3", "-c", RANK))
    body = {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    answers = namespace.ask(name, [{**body, "prompt": [1 + index, 2, 3]} for index in range(NUM_REQUESTS)])
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [NUM_TOKENS] * NUM_REQUESTS
    after = json.loads(namespace.kubectl("exec", pod, "--", "python3", "-c", RANK))
    periods, throttled = (after[counter] - before[counter] for counter in ("periods", "throttled"))
    busy = max(after["ranks"].values())  # a spare rank may have started meanwhile
    print(f"{name}: {throttled} of {periods} periods were throttled; CPU seconds of the rank's threads: {busy}")
    return {**after, "threads": logged_threads(namespace.kubectl("logs", pod))}


def test_a_cpu_limit_bounds_the_threads(namespace: Namespace):
    """One CPU and no OMP_NUM_THREADS: one thread per rank, whatever the node has.

    Printed beside it: the throttled periods of a pod that starts a thread per core of the node, as all pods once did.
    """
    limited = under_a_limit_of_one_cpu(namespace, "limited", [])
    cores = limited["cores"]
    expected = f"1 thread (affinity {cores} core{'s' * (cores > 1)}, CPU quota 1, 1 rank)"
    assert limited["threads"] == {"rank 0": expected}
    namespace.kubectl("delete", "orca", "limited")
    per_core = under_a_limit_of_one_cpu(namespace, "per-core", [{"name": "OMP_NUM_THREADS", "value": str(cores)}])
    assert per_core["threads"] == {"rank 0": f"OMP_NUM_THREADS={cores} is set"}


def test_without_a_limit_memory_is_sized_from_the_request(namespace: Namespace):
    """1 GiB as the request, and a request that torch alone exceeds: both serve, and the second one is warned of."""
    for name, request in (("enough", "1Gi"), ("little", "32Mi")):
        resources = {"requests": {"cpu": "10m", "memory": request}}
        namespace.deploy(demo_spec(worker=worker_settings(resources=resources)), name)
    logs = {}
    for name in ("enough", "little"):
        namespace.wait_ready(name)
        assert namespace.ask(name, [{"prompt": [1, 2, 3], "max_tokens": 5}])[0]["usage"]["completion_tokens"] > 0
        pods = [found["metadata"]["name"] for found in namespace.pods(name)]
        logs[name] = {
            part: namespace.kubectl("logs", next(pod for pod in pods if ("master" in pod) == (part == "master")))
            for part in ("master", "worker")
        }
    assert re.search(r"request of 1024 MiB - \d+ MiB in use", logs["enough"]["master"])
    assert "memory request leaves" not in logs["enough"]["worker"]
    assert "that one sequence of the maximum length needs" in logs["little"]["master"]
    assert re.search(
        r"WARNING .*Set spec\.worker\.resources\.requests\.memory to at least \d+Mi", logs["little"]["worker"]
    )
