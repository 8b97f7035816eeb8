"""A worker takes the share of its node that its pod was given: threads by the CPU limit, K/V memory by the request."""

from __future__ import annotations

import json
import re

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
    if not process.name.isdigit() or b"orca_worker.rank" not in (process / "cmdline").read_bytes():
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
    """Returns what the worker said of its ranks' threads."""
    return dict(re.findall(r"(rank \d+): (.+)$", log, re.MULTILINE))


def test_a_cpu_limit_bounds_the_threads(namespace: Namespace):
    """One CPU, nothing said of threads: one thread per rank, whatever the node has. Throttled periods are printed."""
    resources = {"requests": {"cpu": "10m", "memory": "1Gi"}, "limits": {"cpu": "1"}}
    namespace.deploy(demo_spec(worker=worker_settings(env=[], resources=resources)))
    namespace.wait_ready()
    pod = "pod/" + next(name for found in namespace.pods() if "master" not in (name := found["metadata"]["name"]))
    before = json.loads(namespace.kubectl("exec", pod, "--", "python3", "-c", RANK))
    body = {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    answers = namespace.ask("demo", [{**body, "prompt": [1 + index, 2, 3]} for index in range(NUM_REQUESTS)])
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [NUM_TOKENS] * NUM_REQUESTS
    after = json.loads(namespace.kubectl("exec", pod, "--", "python3", "-c", RANK))
    periods, throttled = (after[name] - before[name] for name in ("periods", "throttled"))
    (busy,) = after["ranks"].values()
    print(
        f"{after['cores']} cores; of {periods} periods {throttled} were throttled; CPU seconds of the threads: {busy}"
    )
    expected = f"1 thread (affinity {after['cores']} core{'s' * (after['cores'] > 1)}, CPU quota 1, 1 rank)"
    assert logged_threads(namespace.kubectl("logs", pod)) == {"rank 0": expected}


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
    assert "that one sequence of the longest length needs" in logs["little"]["master"]
    assert re.search(
        r"WARNING .*Set spec\.worker\.resources\.requests\.memory to at least \d+Mi", logs["little"]["worker"]
    )
