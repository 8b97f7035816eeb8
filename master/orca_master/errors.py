"""Errors that people can mend, each with the way it leaves the process.

`ConfigurationError` ends a command with one line and exit code 2; the others become HTTP answers in
OpenAI's error shape (application.py).
"""

from __future__ import annotations


class ConfigurationError(Exception):
    """A flag, file or model that does not fit; the message names it and the way out."""


class RequestError(Exception):
    """A request that is refused for good (HTTP 400); `field` is the parameter to blame, if one is."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ModelNotFoundError(Exception):
    """A model that this server does not have (HTTP 404)."""


class QueueFullError(Exception):
    """The request pool is at its bound (HTTP 429); the same request may fit later."""


class RequestTimeoutError(Exception):
    """A request that took longer than the server allows (HTTP 408)."""


class EngineUnavailableError(Exception):
    """No pipeline serves: still loading, or a worker was lost (HTTP 503)."""


class EngineError(Exception):
    """A fault inside the engine (HTTP 500); the master's log has its cause."""
