"""The memory that glibc's heap has freed: return it to the system, or keep it for later allocations."""

from __future__ import annotations

import contextlib
import ctypes

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of mallopt(3)
NEVER = -1
"""The threshold that disables trimming."""


def return_freed_memory() -> None:
    """Call malloc_trim(3) of glibc; no-op with other C libraries."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Let this process's heap keep freed memory until `return_freed_memory`; no-op with other C libraries.

    By default each tensor of more than 32 MiB, and the end of the heap, return to the system when they are freed. The
    tensors of the next layer then have new pages, which the kernel fills with zeros first.
    """
    with contextlib.suppress(AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP_MAX, 0)
        libc.mallopt(TRIM_THRESHOLD, NEVER)
