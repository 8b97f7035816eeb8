"""`ChoiceGroups`: the choices of requests of which some choices have not arrived yet.

The choices of a client's request arrive one by one (`n`, several prompts). The first reserves places in the pool for
all; none of them waits in the pool before the last has arrived. So a request that is refused was never in the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from orca_master.engine.messages import Choices
from orca_master.errors import RequestError
from orca_master.scheduling.request import Request
from orca_master.scheduling.request_pool import RequestPool


@dataclass(slots=True)
class _Group:
    choices: Choices
    num_tokens_left: int
    requests: list[Request] = field(default_factory=list)


class ChoiceGroups:
    """Incomplete groups of choices, with reservations in `pool`."""

    def __init__(self, pool: RequestPool) -> None:
        self._pool = pool
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[str, _Group] = {}
        """Group of each choice that has arrived, by the choice's request id."""

    def __iter__(self) -> Iterator[Request]:
        """Iterate over the choices that have arrived."""
        return iter([request for group in self._groups.values() for request in group.requests])

    def __contains__(self, choices: Choices) -> bool:
        """Return True if a choice of this request has arrived."""
        return choices.group_id in self._groups

    def share_prompt(self, request: Request, choices: Choices) -> None:
        """Give a choice the prompt of the choice before it, and the keys of its blocks, if both have the same.

        A prompt of a client's `n` choices is checked and hashed once, not once for each of them.
        """
        group = self._groups.get(choices.group_id)
        last = group.requests[-1] if group is not None else request
        if (last.adapter, last.cache_salt, last.prompt) == (request.adapter, request.cache_salt, request.prompt):
            request.prompt, request.block_keys = last.prompt, last.block_keys
            request.checked_prompt = last.checked_vocabulary

    def add(self, request: Request, choices: Choices) -> list[Request]:
        """Add a choice; if it is the last, put all into the pool and return them, else return an empty list.

        Raises QueueFullError if the choices do not fit into the pool, and RequestError if `choices` differs from that
        of the choices before, or this choice exceeds it (API processes are not trusted).
        """
        group = self._groups.get(choices.group_id) or _Group(choices, choices.num_tokens)
        if group.choices != choices or request.max_tokens > group.num_tokens_left:
            raise RequestError("the choices of the request differ from those that its first choice announced")
        if not group.requests:
            self._pool.reserve(choices.count, choices.num_tokens)
            self._groups[choices.group_id] = group
        group.num_tokens_left -= request.max_tokens
        group.requests.append(request)
        self._group_of[request.request_id] = group
        if len(group.requests) < choices.count:
            return []
        self._remove(group)
        for entry in group.requests:
            self._pool.put_back(entry)
        return group.requests

    def discard(self, request_id: str) -> bool:
        """Forget the incomplete group of a choice; return False if the choice is in none."""
        group = self._group_of.get(request_id)
        if group is not None:
            self._remove(group)
        return group is not None

    def overdue(self, since: float) -> list[Request]:
        """Return the choices of the groups whose first choice arrived at `since` or before (monotonic clock)."""
        groups = [group for group in self._groups.values() if group.requests[0].arrived_at <= since]
        return [request for group in groups for request in group.requests]

    def _remove(self, group: _Group) -> None:
        del self._groups[group.choices.group_id]
        for request in group.requests:
            del self._group_of[request.request_id]
        self._pool.free(group.choices.count, group.choices.num_tokens)
