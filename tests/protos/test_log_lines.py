"""One event is one line: what a client sends cannot make a second one, nor command a terminal."""

from __future__ import annotations

import argparse
import json
import logging
import sys

import pytest
from orca_protos.log_lines import (
    LOG_LEVELS,
    JsonFormatter,
    TextFormatter,
    add_log_options,
    configure_logging,
    escaped,
)

FORGED = "x\n2026-11-21 00:00:00,000 CRITICAL forged\x1b[2J\r\u2028\u202e\ud800"


def record(message: str, *arguments: object, exc_info=None) -> logging.LogRecord:
    return logging.LogRecord("a.logger", logging.INFO, "file", 1, message, arguments, exc_info)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("GET /v1/models", "GET /v1/models"),
        ("Grüße 你好", "Grüße 你好"),
        ("a\nb\r\x1b[2J\x00\x7f", "a\\nb\\r\\x1b[2J\\x00\\x7f"),
        ("\u2028\u202e\ud800", "\\u2028\\u202e\\ud800"),
    ],
)
def test_what_does_not_print_is_escaped(text, line):
    assert escaped(text) == line


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_an_event_is_one_line(formatter):
    for event in (record(FORGED), record("%s", FORGED), record("%(a)s", {"a": FORGED})):
        line = formatter.format(event)
        assert line.isprintable()
        assert "forged" in line
    name = record("x")
    name.name = FORGED
    assert formatter.format(name).isprintable()


def test_a_traceback_is_marked():
    """No line of it can be taken for an event's: each begins with a mark."""
    try:
        raise ValueError(FORGED)
    except ValueError:
        event = record("failed", exc_info=sys.exc_info())
    first, *others = TextFormatter().format(event).split("\n")
    assert first.endswith("a.logger: failed")
    assert others
    assert all(line.startswith("    | ") and line.isprintable() for line in others)
    fields = json.loads(JsonFormatter().format(event))
    assert (fields["level"], fields["logger"], fields["message"]) == ("INFO", "a.logger", "failed")
    assert "ValueError" in fields["exception"]


@pytest.fixture
def root_logger():
    """Give the handlers and the level of all loggers back after a test that replaces them."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []  # `configure_logging` closes those that it finds
    yield root
    root.handlers, root.level = handlers, level


@pytest.mark.parametrize("level", LOG_LEVELS)
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_level_hides_the_lines_below(root_logger, capsys, level, log_format):
    parser = argparse.ArgumentParser()
    add_log_options(parser)
    arguments = parser.parse_args(["--log-level", level, "--log-format", log_format])
    configure_logging(arguments.log_format, arguments.log_level)
    for name in LOG_LEVELS:
        getattr(logging.getLogger("orca"), name)("line of level %s", name)
    lines = capsys.readouterr().err.splitlines()
    assert [line.rstrip('"}').split()[-1] for line in lines] == list(LOG_LEVELS[LOG_LEVELS.index(level) :])


def test_the_default_is_text_of_level_info(root_logger, capsys):
    parser = argparse.ArgumentParser()
    add_log_options(parser)
    arguments = parser.parse_args([])
    configure_logging(arguments.log_format, arguments.log_level)
    logging.getLogger("orca").debug("a detail")
    logging.getLogger("orca").info("ready")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("INFO orca: ready")


def test_debug_shows_no_details_of_libraries(root_logger, capsys):
    configure_logging("text", "debug")
    for name in ("asyncio", "grpc", "orca"):
        logging.getLogger(name).debug("a detail")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("DEBUG orca: a detail")
