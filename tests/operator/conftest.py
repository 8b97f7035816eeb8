"""The operator's version in labels, fixed, so that a release changes no golden file and no expected scenario."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from orca_operator import names

RELEASE = "1.2.3"


@pytest.fixture(autouse=True, scope="module")
def _release() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "RELEASE", RELEASE)
        yield
