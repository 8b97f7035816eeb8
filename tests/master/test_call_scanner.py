"""CallScanner: names and arguments of one JSON object, and where the object ends."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.text.call_scanner import CallScanner

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def is_utf8(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


@given(
    name=st.text().filter(is_utf8),
    arguments=st.dictionaries(st.text(), VALUES),
    others=st.dictionaries(st.text(), VALUES),
    arguments_first=st.booleans(),
    ascii_only=st.booleans(),
)
def test_a_call_ends_with_its_object(name, arguments, others, arguments_first, ascii_only):
    others = {key: value for key, value in others.items() if key not in ("name", "arguments", "parameters")}
    call = {"arguments": arguments, "name": name} if arguments_first else {"name": name, "arguments": arguments}
    text = json.dumps({**others, **call}, ensure_ascii=ascii_only)
    scanner = CallScanner()
    assert scanner.feed(f"{text} }}") == len(text)
    assert scanner.ended
    assert not scanner.broken
    assert scanner.name == name
    assert json.loads(scanner.take_arguments()) == arguments


@given(arguments=st.dictionaries(st.text(), VALUES))
def test_the_arguments_of_a_known_name(arguments):
    text = json.dumps(arguments)
    scanner = CallScanner("add")
    assert scanner.feed(f"{text} }}") == len(text)
    assert scanner.ended
    assert (scanner.name, json.loads(scanner.take_arguments())) == ("add", arguments)


@pytest.mark.parametrize(
    "text", ["[", "{,", '{"name" "add"', '{"name":,', '{"name": 5}', '{"name": "\\ud800"}', "{}", "{]", '{"a": {} 1']
)
def test_what_is_no_call(text):
    scanner = CallScanner()
    assert scanner.feed(f"{text} ") <= len(text)
    assert scanner.broken
    assert not scanner.ended


@pytest.mark.parametrize("by_characters", [False, True])
@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ('{"name": "add", "arguments": {"x": 1}, "name": "now"}', "add", '{"x": 1}'),
        ('{"arguments": {"x": 1}, "name": "add", "parameters": {"y": 2}}', "add", '{"x": 1}'),
        ('{"arguments": "{\\"x\\": 1}", "arguments": {"y": 2}, "name": "add"}', "add", '{"x": 1}'),
    ],
)
def test_the_first_of_several_names_or_arguments_counts(text, name, arguments, by_characters):
    """Also in an answer that is not streamed, which has the same calls as a stream."""
    scanner, taken = CallScanner(), ""
    for piece in text if by_characters else [text]:
        scanner.feed(piece)
        taken += scanner.take_arguments()
    assert (scanner.ended, scanner.name, taken) == (True, name, arguments)


def test_arguments_end_with_their_object():
    scanner = CallScanner()
    scanner.feed('{"name": "add", "arguments": {"x": 1} and 2}')
    assert scanner.broken
    assert scanner.take_arguments() == '{"x": 1}'
