"""The master of the protocol model: formations, iterations, losses (orca_master/engine and orca_master/scheduling).

As in `EngineMaster`, iterations are sent as soon as a request can be selected, in the same step. Each has one request:
with two requests and two partitions because batches are balanced, with a token budget because that is one token.
"""

from __future__ import annotations

from protocol_model.state import (
    NUM_PARTITIONS,
    Bounds,
    Guard,
    InFlight,
    Kind,
    Master,
    Message,
    Phase,
    Request,
    State,
    Worker,
    prompt,
    replaced,
)


def begin(state: State, removed: frozenset[Guard]) -> State:
    """Begin a formation: Describe and Load, which are one step here, and a Prepare to each worker."""
    master = state.master
    own = 0 if Guard.OWN_EPOCH in removed else master.epoch
    epoch = max(own, *(worker.highest for worker in state.workers)) + 1
    master = master._replace(phase=Phase.PREPARING, epoch=epoch, replied=(False,) * NUM_PARTITIONS, sequence=0)
    workers = tuple(worker._replace(has_rank=True) for worker in state.workers)
    return state._replace(master=master, workers=workers, network=state.network + _to_all(Kind.PREPARE, master))


def note_reply(state: State, message: Message, bounds: Bounds) -> State:
    """Note a worker's positive reply to a call of this formation; after the last one the next phase begins."""
    master = state.master
    expected = {Phase.PREPARING: Kind.PREPARE, Phase.FORMING: Kind.FORM}.get(master.phase)
    if (message.kind, message.epoch, message.caller) != (expected, master.epoch, master.number):
        return state
    replied = replaced(master.replied, message.to, True)
    if not all(replied):
        return state._replace(master=master._replace(replied=replied))
    if master.phase is Phase.PREPARING:
        master = master._replace(phase=Phase.FORMING, replied=(False,) * NUM_PARTITIONS)
        return state._replace(master=master, network=state.network + _to_all(Kind.FORM, master))
    return dispatch(state._replace(master=master._replace(phase=Phase.SERVING)), bounds)


def is_lost(state: State) -> bool:
    """Return whether the formation fails, or a worker has left the epoch, so that the master will detect a loss."""
    master = state.master
    if master.phase is Phase.DOWN:
        return False
    if master.phase is Phase.SERVING:
        return any(worker.running != master.epoch or worker.failed == master.epoch for worker in state.workers)
    kind = Kind.PREPARE if master.phase is Phase.PREPARING else Kind.FORM
    asked = {
        message.to
        for message in state.network
        if (message.kind, message.epoch, message.caller) == (kind, master.epoch, master.number)
    }
    return any(not replied and partition not in asked for partition, replied in enumerate(master.replied))


def lose(state: State, removed: frozenset[Guard]) -> State:
    """Give the formation up: its requests are rewound, and the next formation begins."""
    requests = tuple(
        request if request is None or request.row < 0 else rewound(request, removed)
        for request in state.master.requests
    )
    return begin(state._replace(master=state.master._replace(in_flight=(), requests=requests)), removed)


def rewound(request: Request, removed: frozenset[Guard]) -> Request:
    """Return the request with its tokens only: see Scheduler.rewind."""
    num_computed = request.num_computed if Guard.REWIND in removed else 0
    return Request(request.generated, num_computed, incarnation=request.incarnation + 1)


def dispatch(state: State, bounds: Bounds) -> State:
    """Select and send iterations until no request can be selected or enough are in flight: Algorithm 1."""
    master, sent = state.master, []
    while master.phase is Phase.SERVING and len(master.in_flight) < NUM_PARTITIONS + bounds.has_spare:
        selected = _select(master, bounds)
        if selected < 0:
            break
        request = master.requests[selected]
        assert request is not None
        tokens = (*prompt(selected, bounds), *request.generated)
        held = {other.row for other in master.requests if other is not None}
        row = request.row if request.row >= 0 else min(set(range(len(held) + 1)) - held)
        sequence, start = master.sequence + 1, request.num_computed + request.num_in_flight
        end = min(len(tokens), start + (bounds.token_budget or len(tokens)))
        sent.append(
            Message(
                Kind.ITERATION,
                master.epoch,
                to=0,
                sequence=sequence,
                request=selected,
                row=row,
                start=start,
                samples=end == len(tokens),
                tokens=tokens[:end],
            )
        )
        master = master._replace(
            sequence=sequence,
            in_flight=(*master.in_flight, InFlight(sequence, selected, request.incarnation, end - start)),
            requests=replaced(
                master.requests, selected, request._replace(row=row, num_in_flight=end - request.num_computed)
            ),
        )
    return state._replace(master=master, network=(*state.network, *sent))


def receive(state: State, message: Message, removed: frozenset[Guard], bounds: Bounds) -> State:
    """Handle a result: commit it and send the next iterations, or give the pipeline up."""
    master = state.master
    if master.phase is not Phase.SERVING or (message.epoch != master.epoch and Guard.RESULT_EPOCH not in removed):
        return state
    if not master.in_flight:
        return lose(state, removed)
    oldest, *others = master.in_flight
    if message.sequence != oldest.sequence and Guard.RESULT_SEQUENCE not in removed:
        return lose(state, removed)
    request = master.requests[oldest.request]
    assert request is not None
    if request.incarnation == oldest.incarnation or Guard.INCARNATION in removed:
        request = _committed(request, oldest, message.tokens, removed, bounds)
    requests = replaced(master.requests, oldest.request, request)
    return dispatch(state._replace(master=master._replace(in_flight=tuple(others), requests=requests)), bounds)


def preempt(state: State, removed: frozenset[Guard], bounds: Bounds) -> State | None:
    """Rewind the last request that holds a row, as paged admission does; None without a second holder."""
    master = state.master
    holders = [index for index, request in enumerate(master.requests) if request is not None and request.row >= 0]
    if len(holders) < 2:
        return None
    last = master.requests[holders[-1]]
    assert last is not None
    requests = replaced(master.requests, holders[-1], rewound(last, removed))
    return dispatch(state._replace(master=master._replace(requests=requests)), bounds)


def refuses_for_ever(master: Master, message: Message, removed: frozenset[Guard]) -> bool:
    """Return whether the master drops the result now and at any later time."""
    return message.epoch < master.epoch and Guard.RESULT_EPOCH not in removed


def resumed(state: State, removed: frozenset[Guard], bounds: Bounds) -> State:
    """Return the state in which a new master has read the journal and begins its first formation."""
    requests = tuple(None if tokens is None else _recorded(tokens, removed) for tokens in state.journal)
    master = Master(state.master.number + 1, requests=requests)
    return begin(state._replace(master=master), removed)


def restarted(worker: Worker, whole: bool) -> Worker:
    """Return the worker after the death of its process (`whole`), or of its rank only."""
    return Worker() if whole else Worker(worker.highest)


def _select(master: Master, bounds: Bounds) -> int:
    """Return the earliest request that waits or has nothing in flight, or else the one whose prompt has parts left.

    -1 without one. No part begins beside another one while an answer is generated: see candidates.pipelined_prompts.
    """
    unfinished = [
        (index, request)
        for index, request in enumerate(master.requests)
        if request is not None and request.is_live and len(request.generated) < bounds.num_tokens
    ]
    for index, request in unfinished:
        if not request.num_in_flight:
            return index
    left = {index: _num_unscheduled(request, bounds) for index, request in unfinished if request.row >= 0}
    if any(count <= 1 for count in left.values()):
        return -1
    return min(left, default=-1)


def _num_unscheduled(request: Request, bounds: Bounds) -> int:
    """Return the number of known tokens that no iteration so far computes."""
    return bounds.prompt_length + len(request.generated) - request.num_computed - request.num_in_flight


def _recorded(tokens: tuple[int, ...], removed: frozenset[Guard]) -> Request | None:
    """Return a request as a restarted master reads it from the journal."""
    if Guard.REMEMBER in removed:
        return None
    return Request(() if Guard.RECORDED_TOKENS in removed else tokens, is_live=Guard.RESUME not in removed)


def _committed(
    request: Request, entry: InFlight, sampled: tuple[int, ...], removed: frozenset[Guard], bounds: Bounds
) -> Request:
    """Return the request with the computed tokens of an iteration and the sampled token: see Scheduler.commit."""
    generated = (*request.generated, *sampled)
    if len(generated) >= bounds.num_tokens:
        return Request(
            generated, row=request.row if Guard.RELEASE in removed else -1, incarnation=request.incarnation + 1
        )
    return request._replace(
        generated=generated,
        num_computed=request.num_computed + entry.num_tokens,
        num_in_flight=max(0, request.num_in_flight - entry.num_tokens),  # below 0 only without the guard INCARNATION
    )


def _to_all(kind: Kind, master: Master) -> tuple[Message, ...]:
    return tuple(Message(kind, master.epoch, partition, master.number) for partition in range(NUM_PARTITIONS))
