"""A fault in the trailing metadata of a status: it fits, and comes back."""

from __future__ import annotations

import pytest
from orca_protos import engine_pb2 as pb
from orca_protos.faults import FAULT_KEY, MAX_MESSAGE_BYTES, cut, from_error, to_metadata


class Status:
    """As a gRPC error: only its metadata are read."""

    def __init__(self, *metadata: tuple[str, bytes]) -> None:
        self._metadata = metadata

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return self._metadata


def test_a_fault_comes_back():
    fault = pb.Fault(message="rank 1 is gone")
    assert from_error(Status(*to_metadata(fault))) == fault


def test_a_long_message_is_cut_and_the_fault_itself_is_not_changed():
    fault = pb.Fault(message="é" * 5000)
    found = from_error(Status(*to_metadata(fault)))
    assert len(found.message.encode()) <= MAX_MESSAGE_BYTES
    assert fault.message == "é" * 5000


@pytest.mark.parametrize("metadata", [(), (("other", b"x"),), ((FAULT_KEY, b"\xff\xff"),)])
def test_a_status_without_a_readable_fault_has_none(metadata):
    assert from_error(Status(*metadata)) is None


@pytest.mark.parametrize(("text", "size", "expected"), [("abc", 2, "ab"), ("aé", 2, "a"), ("\ud800", 5, "?")])
def test_cut_counts_bytes_and_leaves_no_half_character(text, size, expected):
    assert cut(text, size) == expected
