"""The records of the journal and their form in a file: a line each, the CRC-32 of a JSON array and the array.

| record | array |
|---|---|
| Header | `["journal", VERSION, MODEL]`, the first of each file |
| Previous | `["tokens", [0, FILE, BYTES]]`, the second of each file: the size of the file before it |
| Weights | `["tokens", [0, SOURCE, {FILE: DIGEST}]]`, the third of each file: what computed the tokens after it |
| Accepted | `["accepted", NUMBER, {…}]` |
| Tokens | `["tokens", [NUMBER, CHOICE, TOKEN] or [NUMBER, CHOICE, TOKEN, FINISH_REASON, LOGPROBS], …]` |
| Ended | `["ended", NUMBER, SECONDS, ERROR]` |
| Resumed | `["resumed", NUMBER, …]`, the requests that a restarted master continues |
| Stopped | `["stopped"]`: the master ended in order |
| Request | `["request", NUMBER, {…}, [TOKEN, …], NUM_RESUMED, END]`: a whole request, written again |

The `{…}` have the fields of `Accepted`, `adapter` only if there is one: versions before this field ignore the rest of
such a file. Previous and Weights have the form of a token because versions before them ignore tokens of the request 0,
which does not exist. Weights have `source` and `file_digest` of pb.ModelFacts, both empty if nothing is known. An
element of Tokens ends with PROMPT_LOGPROBS if its output has any. The functions are pure. A request has a number, which
is shorter than its id. `TokenLog` has the tokens of a request in memory.
"""

from __future__ import annotations

import base64
import binascii
import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

from orca_protos import engine_pb2 as pb

VERSION = 1


class RecordError(Exception):
    """A line that is damaged or was not written by this version."""


class AdapterFiles(NamedTuple):
    """An adapter that was loaded while the master ran. `folder`: path on the workers. `digest`: of its files."""

    name: str
    folder: str
    digest: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request that the engine has accepted. `prompts` are token ids, times are in seconds since the epoch.

    `route`: COMPLETIONS or CHAT of endpoint/resumable_request.py. `body`: the fields that the client set, without
    prompts, except the texts of those that the response repeats.
    `owner`: SHA-256 of the API key in hexadecimal digits, "" without keys. `adapter`: that the next master must load;
    None for the model, or one of its adapters from the start. `parent`: see trace_parents.py.
    """

    request_id: str
    route: str
    body: dict[str, Any]
    prompts: Sequence[Sequence[int]]
    max_tokens: int
    logprobs: int | None
    seed: int
    created: int
    owner: str
    deadline: float | None = None
    adapter: AdapterFiles | None = None
    parent: tuple[str, str] = ("", "")


class Token(NamedTuple):
    """An output of the engine for a choice. `finish_reason`: as the engine's.

    `logprobs` and `prompt_logprobs`: a serialized pb.Logprobs and pb.PromptLogprobs.
    """

    choice: int
    token: int
    finish_reason: str | None = None
    logprobs: bytes | None = None
    prompt_logprobs: bytes | None = None


class TokenLog(Sequence[Token]):
    """Outputs of a request in the order of their arrival, most of them in 8 bytes. It may grow while it is read."""

    def __init__(self, outputs: Iterable[Token] = ()) -> None:
        self._numbers = array("I")
        """Choice and token of each output in turn."""
        self._details: dict[int, Token] = {}
        """The outputs that have more than a token, by position."""
        for output in outputs:
            self.append(output)

    def append(self, output: Token) -> None:
        """Add an output; raise OverflowError for a token id that no vocabulary has."""
        choice, token, *details = output
        if any(detail is not None for detail in details):
            self._details[len(self)] = output
        self.append_plain(choice, token)

    def append_plain(self, choice: int, token: int) -> None:
        """Add an output that has only a token; raise OverflowError as `append`."""
        self._numbers += array("I", (choice, token))

    def __len__(self) -> int:
        return len(self._numbers) // 2

    @overload
    def __getitem__(self, index: int) -> Token: ...

    @overload
    def __getitem__(self, index: slice) -> list[Token]: ...

    def __getitem__(self, index: int | slice) -> Token | list[Token]:
        places = range(len(self))[index]
        return self._at(places) if isinstance(places, int) else list(map(self._at, places))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _at(self, place: int) -> Token:
        return self._details.get(place) or Token(self._numbers[2 * place], self._numbers[2 * place + 1])


class Ended(NamedTuple):
    """The end of a request. `at`: seconds since the epoch. `error`: see Recorder.end."""

    at: float
    error: str


@dataclass(slots=True)
class JournalledRequest:
    """A request as read from the journal."""

    accepted: Accepted
    tokens: TokenLog = field(default_factory=TokenLog)
    ended: Ended | None = None
    num_resumed: int = 0
    """How often a restarted master has continued the request since its last token."""
    weights: pb.ModelFacts | None = None
    """Those that computed the last token, as in a Weights; None: the present ones, or no token."""


def encode(record: list[Any]) -> bytes:
    """Return the line of an array."""
    text = json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode()
    return b"%08x %b\n" % (binascii.crc32(text), text)


def header(model: str) -> list[Any]:
    """Return the array of a Header; `model` identifies the model that the requests are for."""
    return ["journal", VERSION, model]


def previous(file: int, num_bytes: int) -> list[Any]:
    """Return the array of a Previous."""
    return ["tokens", [0, file, num_bytes]]


def previous_of(record: list[Any]) -> tuple[int, int] | None:
    """Return file and bytes of a Previous, None for other records."""
    match record:
        case ["tokens", [0, int(file), int(num_bytes)]]:
            return file, num_bytes
    return None


def weights(facts: pb.ModelFacts) -> list[Any]:
    """Return the array of a Weights."""
    return ["tokens", [0, facts.source, dict(facts.file_digest)]]


def weights_of(record: list[Any]) -> pb.ModelFacts | None:
    """Return the identities in a Weights, None for other records."""
    match record:
        case ["tokens", [0, str(source), dict(digests)]]:
            return pb.ModelFacts(source=source, file_digest=digests)
    return None


def accepted(number: int, request: Accepted) -> list[Any]:
    """Return the array of an Accepted."""
    return ["accepted", number, _fields(request)]


def _fields(request: Accepted) -> dict[str, Any]:
    fields = {name: getattr(request, name) for name in request.__slots__ if name != "parent"}
    if request.adapter is None:
        del fields["adapter"]  # earlier versions do not know the field
    return {**fields, "prompts": list(map(list, request.prompts))}


def token(number: int, output: Token) -> list[Any]:
    """Return an element of the array of Tokens."""
    of_prompt = [] if output.prompt_logprobs is None else [_text(output.prompt_logprobs)]
    if output.finish_reason is None and output.logprobs is None and not of_prompt:
        return [number, output.choice, output.token]
    return [number, output.choice, output.token, output.finish_reason, _text(output.logprobs), *of_prompt]


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def ended(number: int, end: Ended) -> list[Any]:
    """Return the array of an Ended."""
    return ["ended", number, end.at, end.error]


def request(number: int, whole: JournalledRequest) -> list[Any]:
    """Return the array of a whole request."""
    end = None if whole.ended is None else list(whole.ended)
    tokens = [token(number, output) for output in whole.tokens]
    return ["request", number, _fields(whole.accepted), tokens, whole.num_resumed, end]


def decode(line: bytes) -> list[Any]:
    """Return the array of a line; raise RecordError."""
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % binascii.crc32(text):
        raise RecordError("the checksum does not match")
    record = json.loads(text)
    if not isinstance(record, list) or not record:
        raise RecordError("it is not an array")
    return record


def replay(
    record: list[Any], requests: dict[int, JournalledRequest], damaged: set[int], weights: pb.ModelFacts
) -> None:
    """Apply a record other than a Header; raise RecordError. `weights`: of the last Weights.

    Ignores tokens and ends of unknown requests, and of `damaged` requests, which lack earlier records, until a
    `resumed` record.
    """
    try:
        match record:
            case ["accepted", int(number), dict(fields)]:
                requests[number] = JournalledRequest(_accepted_of(fields))
                damaged.discard(number)
            case ["request", int(number), dict(fields), list(tokens), int(num_resumed), end]:
                ended_as = None if end is None else Ended(*end)
                whole = JournalledRequest(_accepted_of(fields), TokenLog(), ended_as, num_resumed, weights)
                for output in tokens:
                    _replay_token(output, whole.tokens)
                requests[number] = whole
                damaged.discard(number)
            case ["tokens", *outputs]:
                _replay_tokens(outputs, requests, damaged, weights)
            case ["resumed", *numbers]:
                damaged.difference_update(numbers)
                for number in requests.keys() & set(numbers):
                    requests[number].num_resumed += 1
            case ["stopped"]:
                for whole in requests.values():
                    whole.num_resumed = 0
            case ["ended", int(number), float(at), str(error)]:
                if number in requests and number not in damaged:
                    requests[number].ended = Ended(at, error)
            case _:
                raise RecordError(f"a record of the unknown kind {record[0]!r}")
    except (IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise RecordError(str(error)) from error


def _replay_tokens(
    outputs: list[Any], requests: dict[int, JournalledRequest], damaged: set[int], weights: pb.ModelFacts
) -> None:
    for output in outputs:
        if (whole := None if output[0] in damaged else requests.get(output[0])) is not None:
            _replay_token(output, whole.tokens)
            whole.num_resumed, whole.weights = 0, weights


def _accepted_of(fields: dict[str, Any]) -> Accepted:
    adapter = fields.get("adapter")
    return Accepted(
        **{
            **fields,
            "prompts": [array("I", prompt) for prompt in fields["prompts"]],
            "adapter": None if adapter is None else AdapterFiles(*adapter),
        }
    )


def _replay_token(output: list[Any], log: TokenLog) -> None:
    """Append an element of Tokens. Most have no details, and a master that starts reads millions of them."""
    _, choice, value, *rest = output
    if not rest:
        log.append_plain(choice, value)
        return
    reason, *numbers = rest
    log.append(Token(choice, value, reason, *(None if text is None else base64.b64decode(text) for text in numbers)))
