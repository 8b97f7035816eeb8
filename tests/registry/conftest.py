"""A user whose pip and uv have no settings, so that they know the public registry alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.package_index import bare_environment


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the same empty home for all test processes: they share the caches of pip and uv."""
    home = tmp_path_factory.getbasetemp().parent / "home"
    home.mkdir(exist_ok=True)
    return bare_environment(Path(home))
