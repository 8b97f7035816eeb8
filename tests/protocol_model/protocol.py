"""`Protocol`: all transitions of the model, as pure functions from a state to the steps that are possible in it.

The network delivers the messages of a stream in order, and those of different streams and calls in any order, also long
after the end of their epoch. A message is lost only with its receiver's process, because gRPC uses TCP. Each duplicated
message and each that overtakes another of its stream is an anomaly.

Two reductions remove states, but no violation. States that the protocol cannot tell apart are one state (canonical.py).
Clients receive tokens when the master dies, any number of the known ones, and at the end: between them nobody can tell
when a token was received.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from protocol_model import master as masters
from protocol_model import worker as workers
from protocol_model.canonical import canonical
from protocol_model.state import (
    MASTER,
    NOT_CONNECTED,
    NUM_PARTITIONS,
    UNKNOWN,
    Bounds,
    Client,
    Guard,
    Kind,
    Master,
    Message,
    Phase,
    Request,
    State,
    Step,
    Worker,
    replaced,
)

Transition = tuple[Step, State]
Journal = tuple[tuple[int, ...] | None, ...]
STREAMS = (Kind.ITERATION, Kind.RESULT)


class Protocol:
    """The protocol within `bounds`, without the guards `without`."""

    def __init__(self, bounds: Bounds, without: frozenset[Guard] = frozenset()) -> None:
        self.bounds = bounds
        self.without = without

    def initial(self) -> State:
        """Return the state in which the first master begins its first formation."""
        count = self.bounds.num_requests
        master = Master(requests=(None,) * count)
        state = State(
            master,
            workers=(Worker(),) * NUM_PARTITIONS,
            network=(),
            journal=(None,) * count,
            clients=(None,) * count,
            crashes=self.bounds.crashes,
            anomalies=self.bounds.anomalies,
            num_masters=1,
        )
        return canonical(masters.begin(state, self.without), self.without)

    def steps(self, state: State) -> Iterator[Transition]:
        """Yield every possible step, and the state after it."""
        for step, after in itertools.chain(
            self._deliveries(state), self._client_steps(state), self._master_steps(state), self._faults(state)
        ):
            yield step, canonical(after, self.without)

    def is_final(self, state: State) -> bool:
        """Return whether every client has all of its tokens, or knows that its request is not recorded."""
        return state.master.phase is Phase.SERVING and all(
            client is not None and (client.position == UNKNOWN or len(client.received) == self.bounds.num_tokens)
            for client in state.clients
        )

    # -- messages ------------------------------------------------------------------------------------

    def _deliveries(self, state: State) -> Iterator[Transition]:
        for index, message in enumerate(state.network):
            if index and message == state.network[index - 1]:
                continue  # a copy
            overtakes = message.kind in STREAMS and any(
                other[:3] == message[:3] and other.sequence < message.sequence for other in state.network
            )
            if not overtakes:
                yield Step("deliver", message=message), self._delivered(state, index)
            elif state.anomalies:
                spent = state._replace(anomalies=state.anomalies - 1)
                yield Step("deliver early", True, message=message), self._delivered(spent, index)
            if state.anomalies:
                spent = state._replace(anomalies=state.anomalies - 1, network=(*state.network, message))
                yield Step("duplicate", True, message=message), spent

    def _delivered(self, state: State, index: int) -> State:
        message = state.network[index]
        state = state._replace(network=state.network[:index] + state.network[index + 1 :])
        if message.to == MASTER:
            return masters.receive(state, message, self.without, self.bounds)
        state, replied = workers.receive(state, message, self.without, self.bounds.rounding)
        return masters.note_reply(state, message, self.bounds) if replied else state

    # -- clients -------------------------------------------------------------------------------------

    def _client_steps(self, state: State) -> Iterator[Transition]:
        """Submit the next request; once all requests are complete, send a client its next token."""
        if state.master.phase is Phase.DOWN:
            return
        for index, client in enumerate(state.clients):
            if client is None:
                yield Step("submit", subject=index), self._submitted(state, index)
                return  # requests are numbered in the order of their arrival
        if all(
            request is None or len(request.generated) >= self.bounds.num_tokens for request in state.master.requests
        ):
            for index, request in enumerate(state.master.requests):
                client = state.clients[index]
                if request is not None and client is not None and 0 <= client.position < len(request.generated):
                    yield Step("send", subject=index), self._sent(state, index, 1)

    def _submitted(self, state: State, index: int) -> State:
        requests = replaced(state.master.requests, index, Request())
        journal = state.journal if Guard.ACCEPT in self.without else replaced(state.journal, index, ())
        clients = replaced(state.clients, index, Client())
        accepted = state._replace(master=state.master._replace(requests=requests), journal=journal, clients=clients)
        return masters.dispatch(accepted, self.bounds)

    def _sent(self, state: State, index: int, count: int) -> State:
        """Send the next `count` tokens of a request to its client, after writing those that the journal lacks."""
        client, request, recorded = state.clients[index], state.master.requests[index], state.journal[index]
        assert client is not None
        assert request is not None
        position = client.position + count
        sent = Client(client.received + request.generated[client.position : position], position)
        journal = state.journal
        if recorded is not None and len(recorded) < position and Guard.FLUSH not in self.without:
            journal = replaced(journal, index, request.generated[:position])
        return state._replace(clients=replaced(state.clients, index, sent), journal=journal)

    # -- the master ----------------------------------------------------------------------------------

    def _master_steps(self, state: State) -> Iterator[Transition]:
        if state.master.phase is Phase.DOWN:
            yield Step("restart the master"), self._restarted(state)
            return
        if Guard.LOSS not in self.without and masters.is_lost(state):
            yield Step("detect a loss"), masters.lose(state, self.without)
        if Guard.LOCK in self.without:  # else the second master ends at once, and nothing has changed
            yield Step("start a second master"), state._replace(num_masters=2)

    def _restarted(self, state: State) -> State:
        """Start the next master from the journal; the clients connect again."""
        after = masters.resumed(state, self.without, self.bounds)
        clients = tuple(
            client and self._reconnected(client, request)
            for client, request in zip(state.clients, after.master.requests, strict=True)
        )
        return after._replace(clients=clients, num_masters=1)

    def _reconnected(self, client: Client, request: Request | None) -> Client:
        if request is None:
            return client._replace(position=UNKNOWN)
        return client._replace(position=0 if Guard.LAST_EVENT in self.without else len(client.received))

    # -- faults --------------------------------------------------------------------------------------

    def _faults(self, state: State) -> Iterator[Transition]:
        if state.crashes:
            spent = state._replace(crashes=state.crashes - 1)
            yield from self._worker_crashes(spent)
            if state.master.phase is not Phase.DOWN:
                yield from self._master_crashes(spent)
        if state.anomalies and state.master.phase is not Phase.DOWN:
            spent = state._replace(anomalies=state.anomalies - 1)
            yield Step("stall", True), masters.lose(spent, self.without)
            preempted = masters.preempt(spent, self.without, self.bounds)
            if preempted is not None:
                yield Step("preempt", True), preempted

    def _worker_crashes(self, state: State) -> Iterator[Transition]:
        for partition, worker in enumerate(state.workers):
            for whole in (True, False):
                after = state._replace(
                    workers=replaced(state.workers, partition, masters.restarted(worker, whole)),
                    network=without_receiver(state.network, partition) if whole else state.network,
                )
                yield Step("kill the worker" if whole else "kill the rank", True, partition), after

    def _master_crashes(self, state: State) -> Iterator[Transition]:
        """Kill the master, when it has written and sent any number of the tokens that it knows."""
        for sent in self._sent_to_all(state):
            down = sent._replace(
                master=Master(state.master.number, requests=(None,) * self.bounds.num_requests),
                network=without_receiver(state.network, MASTER),
                clients=tuple(
                    client._replace(position=NOT_CONNECTED) if client is not None and client.position >= 0 else client
                    for client in sent.clients
                ),
                num_masters=0,
            )
            for journal in self._journals(sent):
                yield Step(f"kill the master{_received(down.clients, journal)}", True), down._replace(journal=journal)

    def _sent_to_all(self, state: State) -> list[State]:
        """Return the states in which each client has received any number of its known tokens."""
        states = [state]
        for index, (client, request) in enumerate(zip(state.clients, state.master.requests, strict=True)):
            if client is not None and request is not None and client.position >= 0:
                left = range(max(0, len(request.generated) - client.position) + 1)
                states = [self._sent(sent, index, count) for sent in states for count in left]
        return states

    def _journals(self, state: State) -> Iterator[Journal]:
        """Yield the journals that the death of the master may leave, or with `machine` that of its machine."""
        choices = []
        for recorded, request in zip(state.journal, state.master.requests, strict=True):
            if recorded is None or request is None:
                choices.append([recorded])
                continue
            first = 0 if self.bounds.machine else len(recorded)
            known = request.generated
            choices.append([known[:end] for end in range(first, len(known) + 1)])
            if self.bounds.machine:
                choices[-1].append(None)
        return itertools.product(*choices)


def without_receiver(network: tuple[Message, ...], receiver: int) -> tuple[Message, ...]:
    """Return the messages that the death of a receiver leaves."""
    return tuple(message for message in network if message.to != receiver)


def _received(clients: tuple[Client | None, ...], journal: Journal) -> str:
    parts = [
        f"client {index} has {len(client.received)} tokens, the journal {'none' if recorded is None else len(recorded)}"
        for index, (client, recorded) in enumerate(zip(clients, journal, strict=True))
        if client is not None
    ]
    return "".join(f"; {part}" for part in parts)
