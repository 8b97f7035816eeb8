"""Options of stored responses."""

from __future__ import annotations

import argparse

import pytest
from orca_master.commands.response_options import add_response_options, store_limits
from orca_master.endpoint.response_store import StoreLimits


def parse(*arguments: str) -> StoreLimits:
    parser = argparse.ArgumentParser()
    add_response_options(parser)
    return store_limits(parser.parse_args(arguments))


def test_options_and_defaults():
    assert parse() == StoreLimits()
    options = "--max-stored-responses", "0", "--max-stored-response-bytes", "5", "--stored-response-lifetime", "60"
    assert parse(*options) == StoreLimits(0, 5, 60.0)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-stored-responses", "-1"),
        ("--max-stored-responses", "9" * 30),
        ("--max-stored-response-bytes", "0"),
        ("--stored-response-lifetime", "0"),
    ],
)
def test_other_values_are_refused(option, value, capsys):
    with pytest.raises(SystemExit):
        parse(option, value)
    assert "is not a whole number" in capsys.readouterr().err
