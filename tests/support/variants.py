"""Which cases of a parametrised test `make test` tries, and which `make test-long`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from support.checkpoints import VARIANTS

ONE_PER_FAMILY = frozenset(
    {"gpt2-head64-tied", "llama-gqa-tied", "mistral-gqa", "qwen2-gqa-tied", "qwen3-gqa-tied", "gemma2-gqa-tied"}
)
"""Of `make test`."""


def variant_params(names: Iterable[str] = VARIANTS) -> list[Any]:
    """Return parameters for `pytest.mark.parametrize`; all but one variant of each family are marked `long`."""
    return [name if name in ONE_PER_FAMILY else pytest.param(name, marks=pytest.mark.long) for name in names]


def one_short(values: Iterable[Any], short: Any = None) -> list[Any]:
    """Return parameters for `pytest.mark.parametrize`; all but `short` (default: the first) are marked `long`."""
    cases = list(values)
    short = cases[0] if short is None else short
    return [case if case == short else pytest.param(case, marks=pytest.mark.long) for case in cases]


def one_short_row(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return rows of parameters for `pytest.mark.parametrize` with several names; all but the first are `long`."""
    first, *others = rows
    return [first, *(pytest.param(*row, marks=pytest.mark.long) for row in others)]
