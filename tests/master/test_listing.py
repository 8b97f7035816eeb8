"""Pages of lists: each begins after the id that the client names, and says whether another follows."""

from __future__ import annotations

import pytest
from orca_master.endpoint.listing import page_of
from orca_master.errors import RequestError


@pytest.mark.parametrize(
    ("after", "limit", "ids", "has_more"),
    [
        (None, 3, "abc", True),
        (None, 5, "abcde", False),
        ("c", 3, "de", False),
        ("b", 3, "cde", False),
        ("b", 2, "cd", True),
        ("e", 3, "", False),
    ],
)
def test_pages(after, limit, ids, has_more):
    assert page_of("abcde", str, lambda name: {"name": name}, after, limit) == {
        "object": "list",
        "data": [{"name": name} for name in ids],
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": has_more,
    }


def test_an_unknown_id_is_refused():
    with pytest.raises(RequestError, match=r"^after: the list has no entry with the id 'x'$") as error:
        page_of("abc", str, lambda name: {"name": name}, "x", 3)
    assert error.value.field == "after"
