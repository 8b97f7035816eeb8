"""`page_of`: pages of lists in OpenAI's form, which a client continues after the last id that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from orca_master.errors import RequestError


class HasId(Protocol):
    """An entry of a list."""

    @property
    def id(self) -> str:
        """Id of the entry, unique in the list."""


Entry = TypeVar("Entry", bound=HasId)


def page_of(
    entries: Sequence[Entry], wire: Callable[[Entry], dict[str, Any]], after: str | None, limit: int
) -> dict[str, Any]:
    """Return at most `limit` entries after the one with the id `after`; raise RequestError if there is none."""
    start = 0
    if after is not None:
        places = [place for place, entry in enumerate(entries) if entry.id == after]
        if not places:
            raise RequestError(f"after: the list has no entry with the id {after[:80]!a}", "after")
        start = places[0] + 1
    data = [wire(entry) for entry in entries[start : start + limit]]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + limit < len(entries),
    }
