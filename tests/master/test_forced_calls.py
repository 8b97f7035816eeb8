"""ListParser and ArgumentsParser: the calls of a forced answer, at every split and every cut."""

from __future__ import annotations

import itertools
import json

import pytest
from orca_master.text.forced_calls import ArgumentsParser, ListParser
from support.json_schemas import is_prefix_of_json

ADD = {"x": 1, "s": 'a "q" \\ ]}, {"name": "é', "list": [[{}], {"name": "no"}]}
ANSWER = f' [{{"name": "add", "parameters": {json.dumps(ADD)}}} ,\n{{ "name":"now","parameters" : {{}} }} ]'
CALLS = [("add", json.dumps(ADD)), ("now", "{}")]


def parse(parser: ListParser | ArgumentsParser, pieces: list[str]) -> list[tuple[str, str]]:
    """Return names and arguments of the calls, which come one after the other, each with its name first."""
    calls: list[tuple[str, str]] = []
    for place, piece in enumerate(pieces):
        parsed = parser.feed(piece, last=place == len(pieces) - 1)
        assert not parsed.content
        for delta in parsed.calls:
            if delta.name is not None:
                calls.append((delta.name, ""))
            assert delta.index == len(calls) - 1
            name, arguments = calls[-1]
            calls[-1] = name, arguments + delta.arguments
    return calls


def test_every_split_of_a_list():
    for first, second in itertools.combinations_with_replacement(range(len(ANSWER) + 1), 2):
        parser = ListParser()
        assert parse(parser, [ANSWER[:first], ANSWER[first:second], ANSWER[second:]]) == CALLS
        assert parser.ends_with_calls
        assert not parser.is_within_call
    assert parse(ListParser(), [*ANSWER, ""]) == CALLS


def test_a_call_that_is_cut_is_known():
    for parser, text in ((ListParser(), '[{"name": "add", "parameters": {"x": '), (ArgumentsParser("add"), '{"x": ')):
        assert not parser.is_within_call
        parser.feed(text)
        assert parser.is_within_call
        parser.feed("1}}" if isinstance(parser, ListParser) else "1}")
        assert not parser.is_within_call


def test_a_list_that_is_cut_has_whole_calls_and_a_beginning():
    for end in range(len(ANSWER)):
        parser = ListParser()
        calls = parse(parser, [*ANSWER[:end]])
        assert not parser.ends_with_calls
        assert [name for name, _ in calls] == ["add", "now"][: len(calls)]
        assert all(text == whole for (_, text), (_, whole) in zip(calls[:-1], CALLS, strict=False))
        for (_, text), (_, whole) in zip(calls, CALLS, strict=False):
            assert whole.startswith(text)


def test_names_and_arguments_come_as_soon_as_they_are_generated():
    parser = ListParser()
    assert not parser.feed('[{"name": "ad').calls
    assert not parser.feed("d").calls
    for text, deltas in (
        ('"', []),
        (", ", [(0, "add", "")]),
        ('"parameters": {"x', [(0, None, '{"x')]),
        ('": 1}}, {"name": "now", "parameters": {', [(0, None, '": 1}'), (1, "now", "{")]),
        ("}", [(1, None, "}")]),
    ):
        assert [(delta.index, delta.name, delta.arguments) for delta in parser.feed(text).calls] == deltas


def test_what_is_no_list_has_no_calls():
    for text in ("Hello", "[5]", "{]", '[{"name": 5}, {"name": "add", "parameters": {}}]'):
        assert parse(ListParser(), [text]) == []
        assert parse(ListParser(), [*text]) == []


@pytest.mark.parametrize("arguments", ["{}", json.dumps(ADD), '{\n  "x": {"y": "}"}\n}'])
def test_arguments_of_a_named_function(arguments):
    for first, second in itertools.combinations_with_replacement(range(len(arguments) + 1), 2):
        pieces = [arguments[:first], arguments[first:second], arguments[second:]]
        assert parse(ArgumentsParser("add"), pieces) == [("add", arguments)]
    for end in range(1, len(arguments)):
        ((name, text),) = parse(ArgumentsParser("add"), [*arguments[:end]])
        assert (name, text) == ("add", arguments[:end])
        assert is_prefix_of_json(text)
    parser = ArgumentsParser("add")
    assert not parser.feed("").calls
    assert not parser.feed("\n", last=True).calls
    assert not parser.ends_with_calls
