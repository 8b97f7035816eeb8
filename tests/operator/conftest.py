"""Golden files of the operator's tests, and its version in labels, fixed, so that a release changes none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from orca_operator import names

RELEASE = "1.2.3"


@pytest.fixture(autouse=True, scope="module")
def _release() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "RELEASE", RELEASE)
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Return a function that compares a text with a golden file, or writes the file with `--update-golden`."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.write_text(text)
        assert path.exists(), f"{path} is missing: pytest tests/operator --update-golden writes it"
        assert path.read_text() == text, "if the change is meant: pytest tests/operator --update-golden"

    return compare
