"""`uncollected`: imports without garbage collections, for a program that is about to import most of its modules.

Imports make a million objects and hardly any garbage; collections would take a tenth of the time.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Suspend garbage collections within the block, and exclude from later ones the objects that exist at its end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
