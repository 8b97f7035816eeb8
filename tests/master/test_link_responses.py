"""Messages about stored responses: limits of ids, and the values of answers."""

from __future__ import annotations

import pytest
from orca_master.api_processes.link_codec import decode_to_master, encode_to_master
from orca_master.api_processes.link_messages import AskResponses, DeleteResponse, LinkError, StoreResponse
from orca_master.api_processes.link_responses import MAX_ID, decode_responses, encode_responses
from orca_master.endpoint.response_store import StoredResponse

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
    ],
)
def test_ids_that_no_response_has_end_the_link(message):
    with pytest.raises(LinkError):
        decode_to_master(encode_to_master(message))


@pytest.mark.parametrize("data", [[], [b""], [b"a", b"\xff"]])
def test_responses_survive_the_wire(data):
    assert decode_responses(encode_responses(data)) == data


def test_an_answer_that_is_none_is_refused():
    with pytest.raises(LinkError):
        decode_responses(b"\xff")
