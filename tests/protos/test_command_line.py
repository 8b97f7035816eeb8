"""What the commands share: errors of one line, and ports."""

from __future__ import annotations

import argparse

import pytest
from orca_protos.command_line import OneLineParser, port


def test_a_mistake_is_one_line_and_exit_code_2(capsys):
    with pytest.raises(SystemExit) as ended:
        OneLineParser(prog="orca test").parse_args(["--unknown"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "orca test: error: unrecognized arguments: --unknown\n"


def test_a_mistake_in_several_lines_is_one_line(capsys):
    with pytest.raises(SystemExit):
        OneLineParser(prog="orca test").parse_args(["--a\nb\r\u2028c\x1b[1m\udcff", "ü 1"])
    expected = "orca test: error: unrecognized arguments: --a\\nb\\r\\u2028c\\x1b[1m\\udcff ü 1\n"
    assert capsys.readouterr().err == expected


def test_options_are_not_abbreviated(capsys):
    parser = OneLineParser(prog="orca test")
    parser.add_argument("--config")
    with pytest.raises(SystemExit):
        parser.parse_args(["--conf", "x"])
    assert "unrecognized arguments: --conf x" in capsys.readouterr().err


def test_names_of_options_may_have_underscores():
    parser = OneLineParser(prog="orca test")
    parser.add_argument("--max-len")
    parser.add_argument("rest", nargs="*")
    assert parser.parse_args(["--max_len", "a_b"]).max_len == "a_b"
    assert parser.parse_args(["--max_len=--a_b"]).max_len == "--a_b"
    assert parser.parse_args(["--", "--max_len"]).rest == ["--max_len"]
    assert parser.parse_args(["--max-len", "--my_key x"]).max_len == "--my_key x"
    assert parser.parse_known_args(["--other_name"])[1] == ["--other_name"]


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("8000", 8000), ("65535", 65535)])
def test_ports(text, value):
    assert port(text) == value


@pytest.mark.parametrize("text", ["65536", "-1", "", "1e3", " 80", "9" * 5000, "0x50"])
def test_what_is_no_port(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a port from 0 to 65535"):
        port(text)
