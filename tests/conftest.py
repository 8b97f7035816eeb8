"""Checkpoints and workers that tests share, and the summary of the CPU targets that a run has tried."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

# Two OpenMP threads on one busy core hold each other up, and tests run beside each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from orca_kernels.cpu.targets import processor_flags, processor_name
from support import cpu_targets
from support.once import once
from support.worker_pool import WorkerPool

# `make test-exhaustive` repeats the property tests of master, worker and kernels with `--hypothesis-profile long`.
hypothesis.settings.register_profile("short", max_examples=50, deadline=None)
hypothesis.settings.register_profile("long", max_examples=500, deadline=None)
hypothesis.settings.load_profile("short")


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all test processes of a run share."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"


@pytest.fixture(scope="session")
def checkpoint(run_folder: Path):
    """Return the path of a variant's checkpoint, made when first asked for."""
    from support import checkpoints  # torch, which the process that only distributes tests does not need

    def path_of(name: str) -> Path:
        return once(run_folder / "checkpoints" / name, functools.partial(checkpoints.write_checkpoint, name))

    return path_of


@pytest.fixture(scope="session")
def worker_pool() -> Iterator[WorkerPool]:
    """Workers that the tests of this process share, one after another."""
    pool = WorkerPool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def references(run_folder: Path):
    """Return transformers' answers of a variant to prompts of given lengths, computed once."""
    from support import checkpoints

    @functools.cache
    def references_of(name: str, lengths: tuple[int, ...], num_tokens: int) -> list[checkpoints.Reference]:
        prompts = checkpoints.make_prompts(lengths)
        path = run_folder / "references" / f"{name}-{'-'.join(map(str, lengths))}-{num_tokens}.safetensors"
        return checkpoints.read_references(
            once(path, lambda part: checkpoints.write_references(part, name, prompts, num_tokens)), prompts
        )

    return references_of


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes the expected files of tests/operator anew."""
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector off modules and tests, which stay: it took a third of the time of collecting them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make reports name the CPU target of their test."""
    for item in items:
        cpu_targets.mark_target(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Print, below everything else, which CPU targets were tried and which this processor cannot run."""
    yield
    reports = [
        report for outcome in ("passed", "failed", "skipped") for report in terminalreporter.stats.get(outcome, [])
    ]
    for line in cpu_targets.summary(reports, processor_flags(), processor_name()):
        terminalreporter.write_line(line)
