"""The invariants of the protocol model by name: what holds in every state (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocol_model.names import (
    EPOCHS_RISE,
    EVERY_REQUEST_ENDS,
    IN_ORDER,
    NO_OLD_EPOCH,
    NO_STALE_ROW,
    NOTHING_LOST,
    ONCE_IN_ORDER,
    ONE_MASTER,
    RECORDED_FIRST,
    RIGHT_TOKENS,
    ROWS_FREED,
)
from protocol_model.state import UNKNOWN, Bounds, Phase, State, is_right

Holds = Callable[[State, Bounds], bool]


def right_tokens(state: State, bounds: Bounds) -> bool:
    """Check that each known token is one of its request and its position, computed over the right keys and values."""
    return all(
        is_right(token, index, position)
        for index, request in enumerate(state.master.requests)
        if request is not None
        for position, token in enumerate(request.generated, bounds.prompt_length)
    )


def once_in_order(state: State, bounds: Bounds) -> bool:
    """Compare the tokens of each client with the first of those that the master knows.

    After the death of a machine the master may know fewer: then with as many as it knows.
    """
    for index, (client, request) in enumerate(zip(state.clients, state.master.requests, strict=True)):
        if client is None:
            continue
        received = client.received
        if not all(is_right(token, index, place) for place, token in enumerate(received, bounds.prompt_length)):
            return False
        if state.master.phase is not Phase.DOWN and request is not None:
            count = min(len(received), len(request.generated)) if bounds.machine else len(received)
            if request.generated[:count] != received[:count]:
                return False
    return True


def recorded_first(state: State, bounds: Bounds) -> bool:
    """Check that the journal has what a client has received, unless the machine may die."""
    return bounds.machine or all(
        client is None or (recorded is not None and recorded[: len(client.received)] == client.received)
        for client, recorded in zip(state.clients, state.journal, strict=True)
    )


def nothing_lost(state: State, bounds: Bounds) -> bool:
    """Check that no client learns that its accepted request is unknown, unless the machine may die."""
    return bounds.machine or all(client is None or client.position != UNKNOWN for client in state.clients)


def rows_freed(state: State, bounds: Bounds) -> bool:
    """Check that a request with all of its tokens holds no row, and that no two requests hold the same row."""
    requests = [request for request in state.master.requests if request is not None]
    rows = [request.row for request in requests if request.row >= 0]
    ended = [request for request in requests if len(request.generated) == bounds.num_tokens]
    return len(rows) == len(set(rows)) and all(request.row < 0 for request in ended)


def one_master(state: State, bounds: Bounds) -> bool:
    """Check that at most one master uses the journal."""
    return state.num_masters <= 1


OF_STATES: Mapping[str, Holds] = {
    RIGHT_TOKENS: right_tokens,
    ONCE_IN_ORDER: once_in_order,
    RECORDED_FIRST: recorded_first,
    NOTHING_LOST: nothing_lost,
    ROWS_FREED: rows_freed,
    ONE_MASTER: one_master,
}
INVARIANTS = (NO_OLD_EPOCH, IN_ORDER, NO_STALE_ROW, EPOCHS_RISE, *OF_STATES, EVERY_REQUEST_ENDS)
"""All names. A worker's step notes the violation of the first four in `State.violated`."""


def violated_by(state: State, bounds: Bounds) -> str:
    """Return the name of an invariant that the state violates, "" if all hold."""
    if state.violated:
        return state.violated
    for name, holds in OF_STATES.items():
        if not holds(state, bounds):
            return name
    return ""
