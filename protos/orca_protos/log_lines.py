"""Log lines that no client can forge: text or JSON on standard error, one line per event.

Unprintable characters are escaped in the messages of all loggers; lines of a traceback are marked, because the text of
an exception may contain newlines from a client.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
"""Most lines first."""
_CONTINUATION = "\n    | "


def escaped(text: str) -> str:
    """Return the text on one line, with unprintable characters as Python's escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class TextFormatter(logging.Formatter):
    """Time, level, logger and message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        return escaped(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        """See logging.Formatter."""
        lines = super().formatException(ei).splitlines()  # type: ignore[arg-type]
        return _CONTINUATION[1:] + _CONTINUATION.join(map(escaped, lines))


class JsonFormatter(logging.Formatter):
    """A JSON object per line: time, level, logger, message, and the exception, if any."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the log; `configure_logging` takes their values."""
    parser.add_argument("--log-format", choices=LOG_FORMATS, default="text", help="format of log lines (text)")
    parser.add_argument(
        "--log-level", choices=LOG_LEVELS, default="info", help="least severe lines that are logged (info)"
    )


def configure_logging(log_format: str = "text", log_level: str = "info") -> None:
    """Send every logger's lines of a level or above, of LOG_LEVELS, to standard error, in one of LOG_FORMATS."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)
    for library in ("asyncio", "grpc"):  # their debug lines say nothing about ORCA
        logging.getLogger(library).setLevel(max(logging.INFO, logging.getLogger().level))
