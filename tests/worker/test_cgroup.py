"""Limits and usage of control groups, read from faked files of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from orca_worker.cgroup import cpu_quota, memory_left, memory_limit, memory_used, oom_kills

MEBIBYTE = 1 << 20
V1_UNLIMITED = str(0x7FFFFFFFFFFFF000)
POD = "/kubepods/burstable/pod1/container1"


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    """Write /proc/self/cgroup and files below /sys/fs/cgroup; return the root of both."""
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": files[name] for name in files}}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


QUOTAS = {
    "v2: a namespace of its own": ("0::/", {"cpu.max": "150000 100000"}, 1.5),
    "v2: no limit": ("0::/", {"cpu.max": "max 100000"}, None),
    "v2: root of the machine, which has no such file": ("0::/", {}, None),
    "v2: another period": ("0::/", {"cpu.max": "20000 10000"}, 2.0),
    "v2: the own group": (f"0::{POD}", {f"{POD[1:]}/cpu.max": "200000 100000"}, 2.0),
    "v2: a parent binds": (
        f"0::{POD}",
        {f"{POD[1:]}/cpu.max": "400000 100000", "kubepods/burstable/cpu.max": "100000 100000"},
        1.0,
    ),
    "v2: a parent binds where the own group has no limit": (
        f"0::{POD}",
        {f"{POD[1:]}/cpu.max": "max 100000", "kubepods/cpu.max": "350000 100000"},
        3.5,
    ),
    "v2: a path of the host, the mount is the container's": (f"0::{POD}", {"cpu.max": "50000 100000"}, 0.5),
    "v2: a group outside the namespace": ("0::/../../other", {"cpu.max": "100000 100000"}, 1.0),
    "v1": (
        "3:cpu,cpuacct:/\n2:memory:/",
        {"cpu,cpuacct/cpu.cfs_quota_us": "150000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
        1.5,
    ),
    "v1: no limit": ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    "v1: mounted by its short name": (
        "3:cpu,cpuacct:/",
        {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"},
        2.0,
    ),
    "v1: a path of the host, the mount is the container's": (
        f"3:cpu,cpuacct:{POD}",
        {"cpu,cpuacct/cpu.cfs_quota_us": "70000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
        0.7,
    ),
    "v1: a parent binds": (
        "3:cpu:/a/b",
        {
            "cpu/a/b/cpu.cfs_quota_us": "-1",
            "cpu/a/b/cpu.cfs_period_us": "100000",
            "cpu/a/cpu.cfs_quota_us": "300000",
            "cpu/a/cpu.cfs_period_us": "100000",
        },
        3.0,
    ),
    "v1 with an empty v2 beside it": (
        "4:cpu:/x\n0::/x",
        {"cpu/x/cpu.cfs_quota_us": "250000", "cpu/x/cpu.cfs_period_us": "100000", "unified/x/cgroup.procs": "1"},
        2.5,
    ),
    "another controller's file says nothing": ("5:cpuset:/", {"cpuset/cpu.cfs_quota_us": "1"}, None),
}


@pytest.mark.parametrize(("groups", "files", "quota"), QUOTAS.values(), ids=QUOTAS)
def test_cpu_quota(tmp_path, groups, files, quota):
    assert cpu_quota(machine(tmp_path, groups, files)) == quota


def test_a_machine_without_control_groups_has_no_limits(tmp_path):
    assert (cpu_quota(tmp_path), memory_limit(tmp_path), memory_left(tmp_path), memory_used(tmp_path)) == (None,) * 4
    assert oom_kills(tmp_path) == 0


def memory_files(version: int, folder: str, limit: str, used: int, inactive: int) -> dict[str, str]:
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        folder = f"memory/{folder}"
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    stat = f"anon 5\n{names[2]} {inactive * MEBIBYTE}\nactive_file 7"
    return {
        f"{folder}{names[0]}": limit,
        f"{folder}{names[1]}": str(used * MEBIBYTE),
        f"{folder}memory.stat": stat,
    }


GROUPS = {1: "4:memory:{path}\n3:cpu:{path}", 2: "0::{path}"}


@pytest.mark.parametrize("version", [1, 2])
def test_page_cache_that_can_be_dropped_is_not_used_memory(tmp_path, version):
    """A checkpoint of 700 MiB that was read once: 300 of 1,000 MiB are in use, as the kubelet would say."""
    root = machine(
        tmp_path, GROUPS[version].format(path="/"), memory_files(version, "", str(1000 * MEBIBYTE), 1000, 700)
    )
    assert memory_limit(root) == 1000 * MEBIBYTE
    assert memory_used(root) == 300 * MEBIBYTE
    assert memory_left(root) == 700 * MEBIBYTE


@pytest.mark.parametrize("version", [1, 2])
def test_the_level_with_the_least_left_binds(tmp_path, version):
    files = memory_files(version, "", str(4000 * MEBIBYTE), 3900, 0)
    files |= memory_files(version, "pod/", str(1000 * MEBIBYTE), 100, 0)
    root = machine(tmp_path, GROUPS[version].format(path="/pod"), files)
    assert memory_limit(root) == 1000 * MEBIBYTE
    assert memory_left(root) == 100 * MEBIBYTE, "the parent's"
    assert memory_used(root) == 100 * MEBIBYTE, "the own group's"


@pytest.mark.parametrize(("version", "unlimited"), [(1, V1_UNLIMITED), (2, "max")])
def test_without_a_limit_usage_is_known_all_the_same(tmp_path, version, unlimited):
    root = machine(tmp_path, GROUPS[version].format(path=POD), memory_files(version, "", unlimited, 300, 50))
    assert memory_limit(root) is None
    assert memory_left(root) is None
    assert memory_used(root) == 250 * MEBIBYTE


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        ("0::/", {"memory.events": "low 0\noom 3\noom_kill 2"}),
        ("4:memory:/", {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2"}),
    ],
)
def test_oom_kills(tmp_path, groups, files):
    assert oom_kills(machine(tmp_path, groups, files)) == 2
