"""Models of tests that change a model's files, or that interrupt a long generation."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.checkpoints import with_long_context


@pytest.fixture
def copy(checkpoint, tmp_path) -> Path:
    """Return a copy of a small GPT-2, which the test may change."""
    return shutil.copytree(checkpoint("gpt2-head64-tied"), tmp_path / "gpt2-head64-tied")


@pytest.fixture
def endless(checkpoint, tmp_path) -> Path:
    """Return a model whose context holds the 8000 tokens of a generation that the test interrupts."""
    return with_long_context(checkpoint("llama-gqa-tied"), tmp_path)
