"""Errors of configuration and requests, and their exit code or HTTP status.

`ConfigurationError` ends a command with one line and exit code 2; the others become HTTP responses in
OpenAI's error shape (application.py).
"""

from __future__ import annotations

ADAPTER_LIMIT = "adapter_limit"
"""Code of a RequestError: as many adapters are loaded as the server, or one API key, may have. Others may leave."""
CONSTRAINT_ERROR = "constraint_error"
"""Code of a RequestError: an answer has begun, and the request's own constraints end it (scheduling/constraint.py)."""


class ConfigurationError(Exception):
    """An invalid flag, file or model; the message names it and the remedy."""


CONTEXT_EXCEEDED = "context_length_exceeded"
"""OpenAI's code of a prompt that is too long: programs shorten a conversation on it, or on the words of the message."""


class RequestError(Exception):
    """An invalid request (HTTP 400); `field` is the invalid parameter, None if no single parameter is.

    `code`: for programs, None for most errors.
    """

    def __init__(self, message: str, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.code = code


class ModelNotFoundError(Exception):
    """A model that this server does not serve (HTTP 404)."""


class QueueFullError(Exception):
    """A queue is full, or the expected wait in it is too long (HTTP 429); the client may retry."""


class RequestTimeoutError(Exception):
    """A request exceeded the server's timeout (HTTP 408)."""


class EngineUnavailableError(Exception):
    """No pipeline serves: the model is loading, or a worker was lost (HTTP 503)."""


class EngineError(Exception):
    """An internal engine error, or a request on which workers fail (HTTP 500); the master's log has the cause."""
