"""The scalars of the API: quantities and label values as Kubernetes takes them."""

from __future__ import annotations

import re

import pytest
from orca_operator.api_types import LABEL_VALUE, QUANTITY, Part


@pytest.mark.parametrize(("text", "fits"), [
    ("8Gi", True), ("500m", True), ("1.5", True), ("0", True), ("8GB", False), ("-1", False), ("", False),
    (".5", False),
])  # fmt: skip
def test_quantities(text, fits):
    assert bool(re.search(QUANTITY, text)) == fits


@pytest.mark.parametrize(("text", "fits"), [("", True), ("a_b.c-1", True), ("-a", False), ("a-", False)])
def test_label_values(text, fits):
    assert bool(re.search(LABEL_VALUE, text)) == fits


def test_a_part_reads_camel_case_and_drops_what_it_does_not_know():
    class Example(Part):
        two_words: int

    assert Example.model_validate({"twoWords": 1, "later": 2}).model_dump(by_alias=True) == {"twoWords": 1}
