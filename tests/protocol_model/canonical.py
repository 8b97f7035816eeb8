"""`canonical`: one state for all states that the protocol cannot tell apart.

- A message that its receiver would drop now and at any later time is dropped at once.
- Of the masters only the running one and the earlier ones are distinguished.
- An incarnation is 0 if no iteration of its request is in flight.
- A worker's row is empty if no request holds the row and no iteration names it.
"""

from __future__ import annotations

from protocol_model import master as masters
from protocol_model import worker as workers
from protocol_model.state import MASTER, Guard, Kind, Master, Message, State, Worker, replaced

EARLIER, RUNNING = 0, 1
"""Numbers of masters in a canonical state."""


def canonical(state: State, removed: frozenset[Guard]) -> State:
    """Return the canonical form of a state, with sorted messages."""
    master, network = state.master, state.network
    if master.number != RUNNING:
        network = tuple(_with_caller(message, master.number) for message in network)
        master = master._replace(number=RUNNING)
    kept = sorted(message for message in network if not _is_refused(state, message, removed))
    held = {request.row for request in master.requests if request is not None}
    held |= {message.row for message in kept if message.kind is Kind.ITERATION}
    first, second = state.workers
    return State(
        _with_incarnations(master),
        (_with_rows(first, held), _with_rows(second, held)),
        tuple(kept),
        *state[3:],
    )


def _with_caller(message: Message, running: int) -> Message:
    return message._replace(caller=RUNNING if message.caller == running else EARLIER)


def _is_refused(state: State, message: Message, removed: frozenset[Guard]) -> bool:
    if message.to == MASTER:
        return masters.refuses_for_ever(state.master, message, removed)
    return workers.refuses_for_ever(state.workers[message.to], message, removed)


def _with_incarnations(master: Master) -> Master:
    flying = [entry.request for entry in master.in_flight]
    requests = master.requests
    for index, request in enumerate(requests):
        if request is not None and request.incarnation and index not in flying:
            requests = replaced(requests, index, request._replace(incarnation=0))
    return master if requests is master.requests else master._replace(requests=requests)


def _with_rows(worker: Worker, held: set[int]) -> Worker:
    rows = worker.rows
    for index, row in enumerate(rows):
        if row and index not in held:
            rows = replaced(rows, index, ())
    while rows and not rows[-1]:
        rows = rows[:-1]
    return worker if rows is worker.rows else worker._replace(rows=rows)
