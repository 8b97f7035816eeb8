"""The rules of versions, on messages with fields that readers of version 0 do not know."""

from __future__ import annotations

import json
import logging
from typing import Annotated

import pytest
from orca_contract.message import LONGEST_NAME, MOST_UNKNOWN_FIELDS, VERSION, Message, Since, UnknownFields, read


class Part(Message):
    name: str
    weight: Annotated[int, Since(VERSION)] = 1


class Whole(Message):
    first_part: Part
    parts: tuple[Part, ...] = ()
    mode: Annotated[str, Since(VERSION)] = ""


REPORT = {
    "state": "serving", "failure": "", "draining": False, "idle": True, "running": 0, "waiting": 0, "pipelines": [],
    "topology": {"model": {"path": "m", "servedName": "m"}, "pipelines": [{"id": "a", "workers": ["w:1"]}]},
    "scheduler": {},
}  # fmt: skip


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def test_a_newer_field_with_its_default_is_left_out():
    assert Whole(first_part=Part(name="a")).wire() == {"firstPart": {"name": "a"}, "parts": []}


def test_a_newer_field_with_a_value_is_sent_to_readers_that_know_it():
    whole = Whole(first_part=Part(name="a", weight=2), parts=(Part(name="b"), Part(name="c", weight=3)), mode="m")
    assert whole.wire() == {
        "firstPart": {"name": "a", "weight": 2}, "parts": [{"name": "b"}, {"name": "c", "weight": 3}], "mode": "m",
    }  # fmt: skip
    assert whole.wire(0) == {"firstPart": {"name": "a"}, "parts": [{"name": "b"}, {"name": "c"}]}
    assert whole.known_to(VERSION) == whole
    assert whole.known_to(0) == Whole(first_part=Part(name="a"), parts=(Part(name="b"), Part(name="c")))


def test_what_an_older_reader_does_not_know_is_named():
    parts = (Part(name="b", weight=2), Part(name="c", weight=3))
    whole = Whole(first_part=Part(name="a", weight=2), parts=parts, mode="m")
    assert whole.unknown_to(0) == ["firstPart.weight", "parts[].weight", "mode"]
    assert whole.unknown_to(VERSION) == []
    assert Whole(first_part=Part(name="a")).unknown_to(0) == []


def test_unknown_fields_are_ignored_and_named():
    body = {"firstPart": {"name": "a", "colour": 1}, "parts": [{"name": "b", "colour": 2}], "extra": {"name": 1}}
    whole, unknown = read(Whole, encoded(body))
    assert whole == Whole(first_part=Part(name="a"), parts=(Part(name="b"),))
    assert unknown == {"Part.colour", "Whole.extra"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"firstPart": {}}', "firstPart.name: Field required"),
        (b'{"firstPart": {"name": 1}}', "firstPart.name: "),
        (b"[]", "message: "),
        (b"{", "message: not JSON"),
        (b"\xff", "message: not JSON"),
        (b"[" * 100_000, "message: not JSON"),
    ],
)
def test_what_cannot_be_read_is_refused_by_the_field(text, words):
    with pytest.raises(ValueError, match=words):
        read(Whole, text)


def test_each_unknown_field_is_logged_once(caplog):
    fields = UnknownFields(logging.getLogger("contract"))
    with caplog.at_level(logging.WARNING):
        fields.log("sender", ["Whole.b", "Whole.a"])
        fields.log("sender", ["Whole.a"])
        fields.log("sender", ["Whole.a", "Whole.c\n"])
    assert [record.getMessage() for record in caplog.records] == [
        "sender: ignored fields unknown to this version: 'Whole.a, Whole.b'",
        "sender: ignored fields unknown to this version: 'Whole.c\\n'",
    ]


def test_many_unknown_fields_are_logged_ten_at_a_time(caplog):
    fields, names = UnknownFields(logging.getLogger("contract")), [f"Whole.{number:02}" for number in range(15)]
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            fields.log("sender", names)
    assert [record.getMessage().count("Whole.") for record in caplog.records] == [10, 5]


def test_a_sender_cannot_fill_the_memory_with_names():
    fields = UnknownFields(logging.getLogger("contract"))
    for start in range(0, 20 * MOST_UNKNOWN_FIELDS, 10):
        fields.log("sender", [f"{number}{'x' * 1000}" for number in range(start, start + 10)])
    assert len(fields._known) <= MOST_UNKNOWN_FIELDS
    assert max(map(len, fields._known)) == LONGEST_NAME
