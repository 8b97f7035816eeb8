"""`errors_as`: errors of the library `tokenizers` as errors of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from orca_master.errors import ConfigurationError, RequestError


@contextlib.contextmanager
def errors_as(kind: type[ConfigurationError] | type[RequestError], prefix: str) -> Iterator[None]:
    """Convert errors of `tokenizers` to `kind`: plain exceptions and panics, which do not derive from Exception."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            message = " ".join(str(error).split())
            raise kind(f"{prefix}{message[:500]}") from error
        raise
