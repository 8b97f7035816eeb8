"""What OpenTelemetry's SDK reports: one-line warnings of ORCA, and configuration errors.

Does not import the SDK, which reports already while it is imported, and is an extra.
"""

from __future__ import annotations

import logging
import time

from orca_protos.command_line import one_line

from orca_master.errors import ConfigurationError

OPTION = "--otlp-traces-endpoint"
LOG_SECONDS = 60.0
"""Least time between two log lines with the same report of the SDK."""
MAX_LENGTH = 400
"""Of a report, in characters: a collector chooses the details of its errors."""
OF_CLIENTS = "opentelemetry.trace."
"""Loggers of reports about the headers of clients, which are not logged."""
OF_HEADERS = "opentelemetry.util.re"
"""Logger of reports about OTEL_EXPORTER_OTLP_HEADERS, whose values may be keys: they are not logged."""

logger = logging.getLogger(__name__)
REPORTS = logging.getLogger("opentelemetry")
"""What the SDK reports goes through this logger (FewWarnings)."""


class FewWarnings(logging.Handler):
    """Logs what the SDK reports as warnings of one line, each once in LOG_SECONDS: every failed export reports."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next: dict[str, float] = {}
        """When a message, without its values, may be logged again."""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        now = time.monotonic()
        if record.name.startswith(OF_CLIENTS) or now < self._next.get(record.msg, 0.0):
            return
        self._next[record.msg] = now + LOG_SECONDS
        text = str(record.msg).replace("%s", "…") if record.name == OF_HEADERS else record.getMessage()
        cause = f": {record.exc_info[1]!r}" if record.exc_info else ""  # False in records of the gRPC exporter
        logger.warning("%s: %s (logged once a minute)", OPTION, one_line(f"{text}{cause}"[:MAX_LENGTH]))


def report_few() -> None:
    """Let FewWarnings alone log what the SDK reports; do nothing the second time."""
    REPORTS.propagate = False
    if not any(isinstance(handler, FewWarnings) for handler in REPORTS.handlers):
        REPORTS.addHandler(FewWarnings())


def invalid_variable(error: Exception) -> ConfigurationError:
    """Return the error of the command line for one of the SDK, which reads its variables in many places."""
    return ConfigurationError(f"{OPTION}: an environment variable OTEL_… is not valid: {error}")
