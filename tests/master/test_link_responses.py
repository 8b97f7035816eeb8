"""Messages about stored responses: limits of ids, and the values of answers."""

from __future__ import annotations

from typing import Any, cast

import pytest
from orca_master.api_processes.link_codec import decode_to_master, encode_to_master
from orca_master.api_processes.link_messages import (
    MAX_ID,
    AdvanceResponse,
    AskEvents,
    AskResponses,
    BeginResponse,
    CancelResponse,
    DeleteResponse,
    EndResponse,
    LinkError,
    StoreResponse,
)
from orca_master.api_processes.link_responses import (
    decode_found,
    decode_page,
    decode_responses,
    encode_found,
    encode_page,
    encode_responses,
)
from orca_master.endpoint.response_store import MAX_NUMBER, EventPage, FoundResponse, Phase, StoredResponse
from orca_protos import engine_link_pb2 as pb

LONG = "a" * (MAX_ID + 1)


@pytest.mark.parametrize(
    "message",
    [
        StoreResponse(1, StoredResponse("", "", "", b"")),
        StoreResponse(1, StoredResponse("a", LONG, "", b"")),
        StoreResponse(1, StoredResponse("a", "", LONG, b"")),
        AskResponses(1, "", LONG, True),
        AskResponses(1, "", "", False),
        DeleteResponse(1, LONG, "a"),
        DeleteResponse(1, "", ""),
        BeginResponse(1, StoredResponse("", "", "", b""), ()),
        AdvanceResponse(1, "", "", ()),
        EndResponse(1, LONG, "a", b"", ()),
        CancelResponse(1, "", LONG),
        AskEvents(1, "", "a", -2),
        AskEvents(1, "", "a", MAX_NUMBER + 1),
    ],
)
def test_ids_that_no_response_has_end_the_link(message):
    with pytest.raises(LinkError):
        decode_to_master(encode_to_master(message))


@pytest.mark.parametrize("data", [[], [b""], [b"a", b"\xff"]])
def test_responses_survive_the_wire(data):
    assert decode_responses(encode_responses(data)) == data


@pytest.mark.parametrize("found", [None, *(FoundResponse(b"a", phase, 3) for phase in Phase)])
def test_a_response_that_was_found_survives_the_wire(found):
    assert decode_found(encode_found(found)) == found


@pytest.mark.parametrize("page", [None, EventPage([], 0, Phase.QUEUED), EventPage([b"a", b""], 7, Phase.LOST)])
def test_events_survive_the_wire(page):
    assert decode_page(encode_page(page)) == page


@pytest.mark.parametrize("decode", [decode_responses, decode_found, decode_page])
def test_an_answer_that_is_none_is_refused(decode):
    with pytest.raises(LinkError):
        decode(b"\xff")


def test_an_unknown_phase_is_refused():
    with pytest.raises(LinkError, match="unknown phase"):
        decode_page(pb.EventPage(phase=cast(Any, 99)).SerializeToString())
    with pytest.raises(LinkError, match="unknown phase"):
        decode_found(pb.StoredResponses(data=[b""]).SerializeToString())
