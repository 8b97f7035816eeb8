"""The workers of the protocol model: what a worker does with a message.

The code: orca_worker/current_epoch.py, epoch.py, rows.py.

Simplifications: an iteration travels from partition 0 to partition 1 together with its activations, so partition 0
forwards it after the computation. A worker whose process has ended is at once running again, without epoch and weights.
"""

from __future__ import annotations

from protocol_model.names import EPOCHS_RISE, IN_ORDER, NO_OLD_EPOCH, NO_STALE_ROW
from protocol_model.state import MASTER, NUM_PARTITIONS, Guard, Kind, Message, State, Worker, replaced, token

WRONG = -1
"""A token that was computed from keys and values of other tokens."""


def refuses_for_ever(worker: Worker, message: Message, removed: frozenset[Guard]) -> bool:
    """Return whether the worker process would drop the message now and at any later time, without another effect."""
    if message.kind is Kind.PREPARE:
        return message.epoch <= worker.highest and Guard.PREPARE_EPOCH not in removed
    guard = Guard.FORM_EPOCH if message.kind is Kind.FORM else Guard.WORKER_EPOCH
    return message.epoch < worker.highest and guard not in removed


def receive(state: State, message: Message, removed: frozenset[Guard], rounds: bool) -> tuple[State, bool]:
    """Apply a message to the worker that it is for; return the state, and whether the worker's reply is positive."""
    worker = state.workers[message.to]
    if message.kind is Kind.PREPARE:
        return _prepare(state, worker, message, removed)
    if message.kind is Kind.FORM:
        return _form(state, worker, message, removed)
    return _iterate(state, worker, message, removed, rounds), False


def _prepare(state: State, worker: Worker, message: Message, removed: frozenset[Guard]) -> tuple[State, bool]:
    if message.epoch <= worker.highest and Guard.PREPARE_EPOCH not in removed:
        return state, False
    violated = EPOCHS_RISE if message.epoch <= worker.highest else ""
    prepared = Worker(message.epoch, has_rank=worker.has_rank)
    workers = replaced(state.workers, message.to, prepared)
    return state._replace(workers=workers, violated=violated), worker.has_rank


def _form(state: State, worker: Worker, message: Message, removed: frozenset[Guard]) -> tuple[State, bool]:
    if not worker.has_rank or (message.epoch != worker.highest and Guard.FORM_EPOCH not in removed):
        return state, False
    again = message.epoch in (worker.running, worker.failed)
    if again and Guard.FORM_ONCE not in removed:
        return state, False
    formed = worker._replace(running=message.epoch, sequence=0)  # so that iterations could be computed again
    violated = EPOCHS_RISE if message.epoch < worker.highest or again else ""
    return state._replace(workers=replaced(state.workers, message.to, formed), violated=violated), True


def _iterate(state: State, worker: Worker, message: Message, removed: frozenset[Guard], rounds: bool) -> State:
    """Compute an iteration, and send it to the next partition or its result to the master."""
    partition, violated = message.to, ""
    if not worker.has_rank or (message.epoch != worker.running and Guard.WORKER_EPOCH not in removed):
        return state
    if message.epoch < worker.highest:
        violated = NO_OLD_EPOCH
    elif message.sequence != worker.sequence + 1:
        if Guard.WORKER_SEQUENCE not in removed:  # a gap is a fault, which ends the epoch
            left = worker._replace(running=0, failed=message.epoch)
            return state._replace(workers=replaced(state.workers, partition, left))
        violated = IN_ORDER
    rows = worker.rows + ((),) * (message.row + 1 - len(worker.rows))
    is_right = rows[message.row][: message.start] == message.tokens[: message.start]
    if not is_right:
        violated = violated or NO_STALE_ROW
    written = rows[message.row][: message.start] + message.tokens[message.start :]
    computed = worker._replace(sequence=message.sequence, rows=replaced(rows, message.row, written))
    if partition + 1 < NUM_PARTITIONS:
        sent = message._replace(to=partition + 1)
    else:
        rounding = message.epoch if rounds else 0
        sampled = token(message.request, len(message.tokens), rounding) if is_right else WRONG
        tokens = (sampled,) if message.samples else ()
        sent = Message(Kind.RESULT, message.epoch, MASTER, sequence=message.sequence, tokens=tokens)
    workers = replaced(state.workers, partition, computed)
    return state._replace(workers=workers, network=(*state.network, sent), violated=violated)
