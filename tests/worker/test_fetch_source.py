"""Messages and log records without the queries of URLs."""

from __future__ import annotations

import logging

from orca_worker.fetch_source import redact, without_queries


def test_queries_of_urls_are_removed_and_other_text_stays():
    assert without_queries("403 for url 'https://a/b?X-Signature=c&d=e' again?") == "403 for url 'https://a/b' again?"


def test_the_filter_of_a_logger_formats_and_redacts():
    record = logging.LogRecord("a", logging.WARNING, "", 0, "Error from %s: %s", ("https://a/b?c=d", "e"), None)
    assert redact(record)
    assert record.getMessage() == "Error from https://a/b e"
