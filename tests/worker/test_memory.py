"""Which memory K/V blocks are sized from: the limit's, else the request's, else the host's."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from orca_worker.memory import MOST_BLOCKS, REQUEST, FreeMemory, blocks_that_fit, free_memory

MEBIBYTE = 1 << 20
CPU = torch.device("cpu")
HOST = 4000


def container(root: Path, limit: int | None, used: int, inactive: int = 0) -> Path:
    """Return a container on a host with 4,000 MiB available; sizes in MiB."""
    files = {
        "proc/meminfo": f"MemTotal: 9 kB\nMemAvailable:   {HOST * 1024} kB",
        "proc/self/cgroup": "0::/",
        "sys/fs/cgroup/memory.max": "max" if limit is None else str(limit * MEBIBYTE),
        "sys/fs/cgroup/memory.current": str(used * MEBIBYTE),
        "sys/fs/cgroup/memory.stat": f"inactive_file {inactive * MEBIBYTE}",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("limit", "request_mib", "used", "inactive", "expected"),
    [
        (1000, None, 300, 0, 700),
        (1000, None, 900, 600, 700),  # page cache is dropped before the limit is reached
        (1000, 600, 300, 0, 700),  # a limit decides alone
        (9000, 600, 300, 0, HOST),
        (200, None, 300, 0, 0),
        (None, 1024, 300, 0, 724),
        (None, 1024, 900, 600, 724),
        (None, 9000, 300, 0, HOST),  # promised, but others have taken it
        (None, 32, 300, 0, 0),
        (None, 0, 300, 0, HOST),
        (None, None, 300, 0, HOST),
    ],
)
def test_limit_then_request_then_host(tmp_path, limit, request_mib, used, inactive, expected):
    environment = {} if request_mib is None else {REQUEST: str(request_mib * MEBIBYTE)}
    found = free_memory(CPU, container(tmp_path, limit, used, inactive), environment)
    assert found.num_bytes == expected * MEBIBYTE
    by_request = limit is None and bool(request_mib)
    assert found.ceiling == (HOST * MEBIBYTE if by_request else found.num_bytes)


def test_without_control_groups_the_host_decides(tmp_path):
    """Nothing says how much of the request is in use."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemAvailable: 1024 kB\n")
    assert free_memory(CPU, tmp_path, {REQUEST: "5"}) == FreeMemory(MEBIBYTE, "of the host", MEBIBYTE)


def test_the_formula_has_every_number(tmp_path, caplog):
    free = free_memory(CPU, container(tmp_path, None, 300), {REQUEST: str(1024 * MEBIBYTE)})
    blocks, formula = blocks_that_fit(free, 2, 0.9, 25 * MEBIBYTE, MEBIBYTE, longest=64)
    assert blocks == 300
    assert formula == (
        "(724 MiB free, min(4000 MiB of the host, request of 1024 MiB - 300 MiB in use), x 0.9 / 2 on this host - "
        "25 MiB buffers) / 1048576 bytes per block = 300 blocks"
    )
    assert caplog.records == []
    free = free_memory(CPU, container(tmp_path, 1000, 300), {})
    assert (
        "(700 MiB free, min(4000 MiB of the host, 700 MiB below the limit of 1000 MiB), x "
        in blocks_that_fit(free, 1, 0.9, 0, MEBIBYTE, longest=64)[1]
    )


def test_a_restarted_rank_does_not_share_the_memory_that_the_others_have_left():
    """Two ranks took 450 blocks each of 1000 MiB; the second is restarted."""
    free = FreeMemory(550 * MEBIBYTE, "of the host", 550 * MEBIBYTE)
    assert blocks_that_fit(free, 2, 0.9, 0, MEBIBYTE, 64)[0] == 247
    blocks, formula = blocks_that_fit(free, 2, 0.9, 0, MEBIBYTE, 64, previous=450)
    assert blocks == 450
    assert formula.endswith("= 247 blocks; unshared it holds the 450 of before")
    assert blocks_that_fit(free, 2, 0.9, 0, MEBIBYTE, 64, previous=500)[0] == 247, "they do not fit any more"


def test_a_request_that_is_too_small_still_serves_the_longest_sequence(tmp_path, caplog):
    """32 MiB requested, torch alone takes 300: a warning names the field and a number that suffices."""
    root = container(tmp_path, None, 300)
    free = free_memory(CPU, root, {REQUEST: str(32 * MEBIBYTE)})
    with caplog.at_level(logging.WARNING):
        blocks, formula = blocks_that_fit(free, 1, 0.9, 10 * MEBIBYTE, MEBIBYTE, longest=64)
    assert blocks == 64
    assert formula.endswith("= 0 blocks, raised to 64 of the 64 that one sequence of the maximum length needs")
    (record,) = caplog.records
    assert "spec.worker.resources.requests.memory to at least 383Mi" in record.getMessage()
    caplog.clear()
    enough = free_memory(CPU, root, {REQUEST: str(383 * MEBIBYTE)})
    assert blocks_that_fit(enough, 1, 0.9, 10 * MEBIBYTE, MEBIBYTE, longest=64)[0] >= 64
    assert caplog.records == [], "the number in the warning is enough"


@pytest.mark.parametrize(("limit", "request_mib"), [(300, None), (None, 32)])
def test_never_more_than_there_is(tmp_path, limit, request_mib):
    """A limit is never exceeded, nor the host by a request; then the master says that nothing fits."""
    environment = {} if request_mib is None else {REQUEST: str(request_mib * MEBIBYTE)}
    free = free_memory(CPU, container(tmp_path, limit, 300), environment)
    blocks, _ = blocks_that_fit(free, 1, 0.9, 0, MEBIBYTE, longest=10_000)
    assert blocks == (0 if limit else int(HOST * 0.9))


def test_ids_of_blocks_fit_into_32_bits():
    """Of a tiny model a large host holds more blocks; the last block of the pools is for padding rows."""
    terabyte = 1 << 40
    blocks, formula = blocks_that_fit(FreeMemory(terabyte, "of the host", terabyte), 1, 1.0, 0, 128, longest=64)
    assert blocks == MOST_BLOCKS == torch.iinfo(torch.int32).max
    assert formula.endswith(f"= {MOST_BLOCKS} blocks")
