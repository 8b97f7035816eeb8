"""`page_of`: pages of lists in OpenAI's form, which a client continues after the last id that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from orca_master.errors import RequestError

Entry = TypeVar("Entry")


def page_of(
    entries: Sequence[Entry],
    id_of: Callable[[Entry], str],
    wire: Callable[[Entry], dict[str, Any]],
    after: str | None,
    limit: int,
) -> dict[str, Any]:
    """Return at most `limit` entries after the one with the id `after`; raise RequestError if there is none.

    `id_of` returns the id of an entry, unique in the list; `wire` returns the entry as JSON values.
    """
    start = 0
    if after is not None:
        places = [place for place, entry in enumerate(entries) if id_of(entry) == after]
        if not places:
            raise RequestError(f"after: the list has no entry with the id {after[:80]!a}", "after")
        start = places[0] + 1
    page = entries[start : start + limit]
    return {
        "object": "list",
        "data": [wire(entry) for entry in page],
        "first_id": id_of(page[0]) if page else None,
        "last_id": id_of(page[-1]) if page else None,
        "has_more": start + limit < len(entries),
    }
