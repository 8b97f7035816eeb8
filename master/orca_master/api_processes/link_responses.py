"""Conversion of the messages about stored responses to protos/engine_link.proto and back. Pure functions.

The data of a response and its events pass unread: an API process writes them and an API process reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from google.protobuf.message import DecodeError
from orca_protos import engine_link_pb2 as pb

from orca_master.api_processes.link_messages import (
    AdvanceResponse,
    AskEvents,
    AskResponses,
    BeginResponse,
    CancelResponse,
    DeleteResponse,
    EndResponse,
    LinkError,
    ResponseMessage,
    StoreResponse,
    bounded,
)
from orca_master.endpoint.response_store import MAX_NUMBER, EventPage, FoundResponse, Phase, StoredResponse

TRUE, FALSE = b"1", b""
"""Values of answers."""
WireMessage: TypeAlias = (
    pb.StoreResponse
    | pb.AskResponses
    | pb.DeleteResponse
    | pb.BeginResponse
    | pb.AdvanceResponse
    | pb.EndResponse
    | pb.CancelResponse
    | pb.AskEvents
)
_PHASES = {
    Phase.STORED: pb.RESPONSE_PHASE_STORED,
    Phase.QUEUED: pb.RESPONSE_PHASE_QUEUED,
    Phase.IN_PROGRESS: pb.RESPONSE_PHASE_IN_PROGRESS,
    Phase.ENDED: pb.RESPONSE_PHASE_ENDED,
    Phase.CANCELLED: pb.RESPONSE_PHASE_CANCELLED,
    Phase.LOST: pb.RESPONSE_PHASE_LOST,
}
_PHASE_OF_NUMBER: dict[int, Phase] = {number: phase for phase, number in _PHASES.items()}


def fill_response_message(envelope: pb.ToMaster, message: ResponseMessage) -> None:
    """Write a message into an empty envelope."""
    match message:
        case StoreResponse(number, stored):
            envelope.store_response.number = number
            _fill_stored(envelope.store_response.stored, stored)
        case AskResponses(number, owner, response_id, with_previous):
            ask = envelope.ask_responses
            ask.number, ask.owner, ask.response_id, ask.with_previous = number, owner, response_id, with_previous
        case DeleteResponse(number, owner, response_id):
            delete = envelope.delete_response
            delete.number, delete.owner, delete.response_id = number, owner, response_id
        case BeginResponse(number, stored, events):
            envelope.begin_response.number = number
            _fill_stored(envelope.begin_response.stored, stored)
            envelope.begin_response.events.extend(events)
        case AdvanceResponse(number, owner, response_id, events):
            advance = envelope.advance_response
            advance.number, advance.owner, advance.response_id = number, owner, response_id
            advance.events.extend(events)
        case EndResponse(number, owner, response_id, data, events):
            end = envelope.end_response
            end.number, end.owner, end.response_id, end.data = number, owner, response_id, data
            end.events.extend(events)
        case CancelResponse(number, owner, response_id):
            cancel = envelope.cancel_response
            cancel.number, cancel.owner, cancel.response_id = number, owner, response_id
        case AskEvents(number, owner, response_id, after):
            wire = envelope.ask_events
            wire.number, wire.owner, wire.response_id, wire.after = number, owner, response_id, after


def response_message_of(message: WireMessage) -> ResponseMessage:
    """Return the message; raise LinkError for an id that no response can have."""
    if isinstance(message, pb.StoreResponse):
        return StoreResponse(message.number, _stored_of(message.stored))
    if isinstance(message, pb.BeginResponse):
        return BeginResponse(message.number, _stored_of(message.stored), list(message.events))
    number, owner, response_id = message.number, bounded(message.owner), _id(message.response_id)
    converted: ResponseMessage
    match message:
        case pb.AskResponses():
            converted = AskResponses(number, owner, response_id, message.with_previous)
        case pb.DeleteResponse():
            converted = DeleteResponse(number, owner, response_id)
        case pb.AdvanceResponse():
            converted = AdvanceResponse(number, owner, response_id, list(message.events))
        case pb.EndResponse():
            converted = EndResponse(number, owner, response_id, message.data, list(message.events))
        case pb.CancelResponse():
            converted = CancelResponse(number, owner, response_id)
        case pb.AskEvents():
            if not -1 <= message.after <= MAX_NUMBER:
                raise LinkError(f"events after the number {message.after}")
            converted = AskEvents(number, owner, response_id, message.after)
    return converted


def encode_responses(data: Sequence[bytes]) -> bytes:
    """Return the value of the answer to AskResponses with previous ones."""
    return pb.StoredResponses(data=data).SerializeToString()


def decode_responses(value: bytes) -> list[bytes]:
    """Return the responses in the answer to AskResponses with previous ones; raise LinkError."""
    return list(_stored_responses(value).data)


def encode_found(found: FoundResponse | None) -> bytes:
    """Return the value of the answer to AskResponses without previous ones."""
    if found is None:
        return b""
    wire = pb.StoredResponses(data=[found.data], phase=_PHASES[found.phase], num_events=found.num_events)
    return wire.SerializeToString()


def decode_found(value: bytes) -> FoundResponse | None:
    """Return the response in the answer to AskResponses without previous ones; raise LinkError."""
    wire = _stored_responses(value)
    return FoundResponse(wire.data[0], _phase_of(wire.phase), wire.num_events) if wire.data else None


def encode_page(page: EventPage | None) -> bytes:
    """Return the value of the answer to AskEvents."""
    if page is None:
        return b""
    wire = pb.EventPage(events=page.events, num_events=page.num_events, phase=_PHASES[page.phase])
    return wire.SerializeToString()


def decode_page(value: bytes) -> EventPage | None:
    """Return the events in the answer to AskEvents; raise LinkError."""
    try:
        wire = pb.EventPage.FromString(value)
    except DecodeError as error:
        raise LinkError("an answer without events") from error
    return EventPage(list(wire.events), wire.num_events, _phase_of(wire.phase)) if value else None


def _stored_responses(value: bytes) -> pb.StoredResponses:
    try:
        return pb.StoredResponses.FromString(value)
    except DecodeError as error:
        raise LinkError("an answer without stored responses") from error


def _phase_of(number: int) -> Phase:
    if number not in _PHASE_OF_NUMBER:
        raise LinkError(f"unknown phase {number} of a response")
    return _PHASE_OF_NUMBER[number]


def _fill_stored(wire: pb.StoredResponse, stored: StoredResponse) -> None:
    wire.response_id, wire.owner = stored.response_id, stored.owner
    wire.previous, wire.data = stored.previous, stored.data


def _stored_of(wire: pb.StoredResponse) -> StoredResponse:
    return StoredResponse(_id(wire.response_id), bounded(wire.owner), bounded(wire.previous), wire.data)


def _id(text: str) -> str:
    if not text:
        raise LinkError("a message about a response without an id")
    return bounded(text)
