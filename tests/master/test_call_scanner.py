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
    "text", ["[", "{,", '{"name" "add"', '{"name":,', '{"name": 5}', '{"name": "\\ud800"}', "{}", "{]"]
)
def test_what_is_no_call(text):
    scanner = CallScanner()
    assert scanner.feed(f"{text} ") <= len(text)
    assert scanner.broken
    assert not scanner.ended
