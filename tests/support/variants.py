"""Which cases of a parametrised test `make test` tries, and which `make test-long` and `make test-exhaustive`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

from support.checkpoints import VARIANTS

ONE_PER_FAMILY = frozenset(
    {"gpt2-head64-tied", "llama-gqa-tied", "mistral-gqa", "qwen2-gqa-tied", "qwen3-gqa-tied", "gemma2-gqa-tied"}
)
"""Of `make test`."""
TWO_FORMS = frozenset({"gpt2-head64-tied", "llama-gqa-tied"})
"""With and without biases: of `make test`, where the families differ in nothing else that a test is about."""


def variant_params(names: Iterable[str] = VARIANTS, short: Collection[str] = ONE_PER_FAMILY) -> list[Any]:
    """Return parameters for `pytest.mark.parametrize`; all but those of `short` are marked `long`."""
    return [name if name in short else pytest.param(name, marks=pytest.mark.long) for name in names]


def partitioned_variant_params() -> list[Any]:
    """Return rows of variant, number of partitions, and ranks of each.

    2 x 2 is short for one variant of each family and `long` for the others; further numbers are `long` for one variant
    of each family and `exhaustive` for the others.
    """
    short, *further = (2, 2), (1, 1), (2, 1), (3, 1), (1, 2)
    rows = []
    for variant in VARIANTS:
        beyond = pytest.mark.long if variant in ONE_PER_FAMILY else pytest.mark.exhaustive
        rows += [pytest.param(variant, *sizes, marks=beyond) for sizes in further]
        rows.append(pytest.param(variant, *short, marks=[] if variant in ONE_PER_FAMILY else pytest.mark.long))
    return rows


def one_short(values: Iterable[Any], short: Any = None, long: Collection[Any] | None = None) -> list[Any]:
    """Return parameters for `pytest.mark.parametrize`; all but `short` (default: the first) are marked `long`.

    With `long`, only those that it contains; the others are marked `exhaustive`.
    """
    cases = list(values)
    short = cases[0] if short is None else short
    return [case if case == short else pytest.param(case, marks=_mark(case, long)) for case in cases]


def _mark(case: Any, long: Collection[Any] | None) -> pytest.MarkDecorator:
    return pytest.mark.long if long is None or case in long else pytest.mark.exhaustive


def one_short_row(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return rows of parameters for `pytest.mark.parametrize` with several names; all but the first are `long`."""
    first, *others = rows
    return [first, *(pytest.param(*row, marks=pytest.mark.long) for row in others)]
