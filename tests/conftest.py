"""Checkpoints that are made once per test process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Two OpenMP threads on one busy core hold each other up, and tests run beside each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from support import checkpoints


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
