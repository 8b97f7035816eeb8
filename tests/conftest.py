"""Checkpoints made once per test process, and the summary of the CPU targets that a run has tried."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Two OpenMP threads on one busy core hold each other up, and tests run beside each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from orca_kernels.cpu.targets import processor_flags, processor_name
from support import checkpoints, cpu_targets
from support.worker_pool import WorkerPool


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test process."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="session")
def checkpoint(checkpoint_folder: Path):
    """Returns the path of a variant's checkpoint, made when first asked for."""

    def path_of(name: str) -> Path:
        path = checkpoint_folder / name
        return path if path.exists() else checkpoints.save(name, checkpoint_folder)

    return path_of


@pytest.fixture(scope="session")
def worker_pool() -> Iterator[WorkerPool]:
    """Workers that the tests of this process share, one after another."""
    pool = WorkerPool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def references(checkpoint):
    """Returns transformers' answers of a variant to prompts of given lengths, computed once."""
    known: dict[tuple[str, tuple[int, ...], int], list[checkpoints.Reference]] = {}

    def references_of(name: str, lengths: tuple[int, ...], num_tokens: int) -> list[checkpoints.Reference]:
        key = (name, lengths, num_tokens)
        if key not in known:
            model = checkpoints.make_model(name)
            known[key] = [
                checkpoints.reference(model, prompt, num_tokens) for prompt in checkpoints.make_prompts(lengths)
            ]
        return known[key]

    return references_of


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes the expected files of tests/operator anew."""
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets reports name the CPU target of their test."""
    for item in items:
        cpu_targets.mark_target(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Prints, below everything else, which CPU targets were tried and which this processor cannot run."""
    yield
    reports = [
        report for outcome in ("passed", "failed", "skipped") for report in terminalreporter.stats.get(outcome, [])
    ]
    for line in cpu_targets.summary(reports, processor_flags(), processor_name()):
        terminalreporter.write_line(line)
