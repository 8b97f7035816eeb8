"""Conversion of the messages about stored responses to protos/engine_link.proto and back. Pure functions.

The data of a response passes unread: an API process writes it and an API process reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from orca_protos import engine_link_pb2 as pb

from orca_master.api_processes.link_messages import AskResponses, DeleteResponse, LinkError, StoreResponse
from orca_master.endpoint.response_store import StoredResponse

TRUE, FALSE = b"1", b""
"""Values of answers."""
MAX_ID = 256
"""Maximum characters of an id and of an owner."""


def fill_response_message(envelope: pb.ToMaster, message: StoreResponse | AskResponses | DeleteResponse) -> None:
    """Write a message into an empty envelope."""
    match message:
        case StoreResponse(number, stored):
            envelope.store_response.number = number
            wire = envelope.store_response.stored
            wire.response_id, wire.owner = stored.response_id, stored.owner
            wire.previous, wire.data = stored.previous, stored.data
        case AskResponses(number, owner, response_id, with_previous):
            ask = envelope.ask_responses
            ask.number, ask.owner, ask.response_id, ask.with_previous = number, owner, response_id, with_previous
        case DeleteResponse(number, owner, response_id):
            delete = envelope.delete_response
            delete.number, delete.owner, delete.response_id = number, owner, response_id


def response_message_of(
    message: pb.StoreResponse | pb.AskResponses | pb.DeleteResponse,
) -> StoreResponse | AskResponses | DeleteResponse:
    """Return the message; raise LinkError for an id that no response can have."""
    if isinstance(message, pb.StoreResponse):
        wire = message.stored
        stored = StoredResponse(_id(wire.response_id), _bounded(wire.owner), _bounded(wire.previous), wire.data)
        return StoreResponse(message.number, stored)
    owner, response_id = _bounded(message.owner), _id(message.response_id)
    if isinstance(message, pb.AskResponses):
        return AskResponses(message.number, owner, response_id, message.with_previous)
    return DeleteResponse(message.number, owner, response_id)


def encode_responses(data: Sequence[bytes]) -> bytes:
    """Return the value of the answer to AskResponses."""
    return pb.StoredResponses(data=data).SerializeToString()


def decode_responses(value: bytes) -> list[bytes]:
    """Return the responses in the answer to AskResponses; raise LinkError."""
    try:
        return list(pb.StoredResponses.FromString(value).data)
    except DecodeError as error:
        raise LinkError("an answer without stored responses") from error


def _id(text: str) -> str:
    if not text:
        raise LinkError("a message about a response without an id")
    return _bounded(text)


def _bounded(text: str) -> str:
    if len(text) > MAX_ID:
        raise LinkError(f"an id or an owner of {len(text)} characters")
    return text
