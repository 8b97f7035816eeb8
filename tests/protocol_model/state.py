"""The states of the protocol model: immutable values of master, workers, network, journal and clients.

Named tuples, because a search over hundreds of thousands of states hashes and compares them at the speed of C.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

T = TypeVar("T")
NUM_PARTITIONS = 2
MASTER = NUM_PARTITIONS
"""Receiver of results; the receivers of other messages are the partitions 0 and 1."""
NOT_CONNECTED, UNKNOWN = -1, -2
"""Positions of a client whose connection broke, and of a client whose request the restarted master does not know."""


class Guard(enum.Enum):
    """The rules of the protocol. `Protocol.without` removes some, to show that an invariant depends on each of them."""

    WORKER_EPOCH = "A worker rejects iterations of another epoch than the one it has formed"
    PREPARE_EPOCH = "A worker prepares only an epoch above its highest"
    FORM_EPOCH = "A worker forms only the epoch that it prepared last"
    FORM_ONCE = "A worker forms an epoch once"
    WORKER_SEQUENCE = "A worker accepts only the iteration that follows its last one"
    RESULT_EPOCH = "The master drops results of another epoch"
    RESULT_SEQUENCE = "The master gives a pipeline up if a result is not the one of its oldest iteration in flight"
    INCARNATION = "The master drops the result of a request that was rewound after the iteration was sent"
    OWN_EPOCH = "A new epoch exceeds the master's own last epoch"
    REWIND = "The requests of a lost pipeline begin again with their initiation phase"
    LOSS = "The master detects that a worker has left the epoch"
    RELEASE = "A request that ends frees its row"
    ACCEPT = "The journal has an accepted request before its client learns the id"
    FLUSH = "The journal has a token before the client receives the token"
    REMEMBER = "A restarted master knows the requests of the journal"
    RESUME = "A restarted master continues the requests that are not complete"
    RECORDED_TOKENS = "A restarted master continues a request after its recorded tokens"
    LAST_EVENT = "A client that reconnects gets the tokens after the last one that it has received"
    LOCK = "A second master does not start on the journal of a running one"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far the search goes.

    `num_tokens`: generated tokens of each request. `crashes`: deaths of a rank, of a worker or of the master.
    `anomalies`: duplicated or reordered messages, stalls, and preemptions. `machine`: the death of the master may be
    that of its machine, which loses the end of the journal. `rounding`: a token that is sampled in another epoch may
    differ, as in bfloat16; otherwise it is the same, as in float32. `token_budget`: input tokens of an iteration, None
    for no limit. `has_spare`: one more iteration than partitions may be in flight.
    """

    num_requests: int = 2
    prompt_length: int = 1
    num_tokens: int = 2
    crashes: int = 2
    anomalies: int = 1
    machine: bool = False
    rounding: bool = True
    token_budget: int | None = None
    has_spare: bool = False


class Kind(enum.IntEnum):
    """Kinds of messages. An activation is part of the iteration that partition 0 sends to partition 1."""

    PREPARE = 0
    FORM = 1
    ITERATION = 2
    RESULT = 3


class Message(NamedTuple):
    """A message in the network.

    `caller`: the number of the master that sent a Prepare or a Form, 0 for others. `tokens` of an iteration: the known
    tokens of its request up to the last one that it computes, beginning at `start`; of a result: the sampled token, if
    `samples`, and none after a part of a prompt.
    """

    kind: Kind
    epoch: int
    to: int
    caller: int = 0
    sequence: int = 0
    request: int = -1
    row: int = -1
    start: int = 0
    samples: bool = False
    tokens: tuple[int, ...] = ()


class Request(NamedTuple):
    """A request on the master: see orca_master.scheduling.request.Request.

    `row`: -1 while it waits or has ended. `is_live`: the scheduler serves it, if it is not complete.
    """

    generated: tuple[int, ...] = ()
    num_computed: int = 0
    num_in_flight: int = 0
    row: int = -1
    incarnation: int = 0
    is_live: bool = True


class InFlight(NamedTuple):
    """An iteration that was sent and has not returned: one request of it, because batches are balanced."""

    sequence: int
    request: int
    incarnation: int
    num_tokens: int


class Phase(enum.IntEnum):
    """Phases of the pipeline on the master; DOWN: no master runs."""

    DOWN = 0
    PREPARING = 1
    FORMING = 2
    SERVING = 3


class Master(NamedTuple):
    """The master. `number`: how many masters have run. `replied`: workers that have answered the present call."""

    number: int = 1
    phase: Phase = Phase.DOWN
    epoch: int = 0
    replied: tuple[bool, ...] = (False,) * NUM_PARTITIONS
    sequence: int = 0
    in_flight: tuple[InFlight, ...] = ()
    requests: tuple[Request | None, ...] = ()


class Worker(NamedTuple):
    """A worker process with its rank.

    `running`: the epoch that it has formed, 0 for none. `failed`: the last epoch that it has left because of a fault of
    its own, and whose streams have ended. `has_rank`: False from a rank's death to the next Load.
    `rows`: of each row, the tokens whose keys and values the present epoch has written.
    """

    highest: int = 0
    running: int = 0
    failed: int = 0
    has_rank: bool = False
    sequence: int = 0
    rows: tuple[tuple[int, ...], ...] = ()


class Client(NamedTuple):
    """The client of a request. `position`: the token that the present connection sends next."""

    received: tuple[int, ...] = ()
    position: int = 0


class State(NamedTuple):
    """A state of the whole system.

    `journal`: the recorded tokens of each request, None for a request that is not recorded. `clients`: None for a
    request that was not submitted. `violated`: the name of an invariant that the last step violated, or "".
    """

    master: Master
    workers: tuple[Worker, ...]
    network: tuple[Message, ...]
    journal: tuple[tuple[int, ...] | None, ...]
    clients: tuple[Client | None, ...]
    crashes: int
    anomalies: int
    num_masters: int = 0
    violated: str = ""


class Step(NamedTuple):
    """The name of a transition. `fault`: a crash or an anomaly, which the bounds count.

    `request`: the request or partition concerned; `message`: the delivered message.
    """

    name: str
    fault: bool = False
    subject: int = -1
    message: Message | None = None

    def __str__(self) -> str:
        subject = f" {self.subject}" if self.subject >= 0 else ""
        message = f" {_text(self.message)}" if self.message is not None else ""
        return f"{self.name}{subject}{message}"


def token(request: int, position: int, rounding: int) -> int:
    """Return the token of `request` at `position` as one number; `rounding`: the epoch, or 0, as for the prompt."""
    return rounding * 100 + request * 10 + position


def is_right(value: int, request: int, position: int) -> bool:
    """Return whether `value` is a token that `request` may have at `position`."""
    return value >= 0 and value % 100 == request * 10 + position


def prompt(index: int, bounds: Bounds) -> tuple[int, ...]:
    """Return the tokens of a request's prompt."""
    return tuple(token(index, position, 0) for position in range(bounds.prompt_length))


def replaced(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    """Return `items` with `item` at `index`."""
    return (*items[:index], item, *items[index + 1 :])


def _text(message: Message) -> str:
    receiver = "the master" if message.to == MASTER else f"partition {message.to}"
    of = f" of request {message.request}" if message.request >= 0 else ""
    sequence = f" {message.sequence}" if message.sequence else ""
    return f"{message.kind.name.lower()}{sequence}{of} in epoch {message.epoch} to {receiver}"
