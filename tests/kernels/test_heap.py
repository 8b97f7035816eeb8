"""Memory of the heap, in a process of its own, because the setting is the process's."""

from __future__ import annotations

import platform
import subprocess
import sys

PROGRAM = """
import ctypes, resource
from orca_kernels.cpu.heap import keep_freed_memory, return_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory = libc.malloc(64 << 20)  # more than glibc ever keeps by default
    ctypes.memset(memory, 1, 64 << 20)
    libc.free(memory)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

counts = [new_pages(), new_pages()]
keep_freed_memory()
counts += [new_pages(), new_pages()]
return_freed_memory()
print(*counts, new_pages())
"""


def test_freed_memory_is_kept_until_it_is_returned():
    """With other C libraries than glibc both functions do nothing, and all of this memory is always returned."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, second, begun, kept, returned = map(int, done.stdout.split())
    assert min(first, second, begun, returned) >= 30  # huge pages; 16,384 of the usual ones
    assert kept < 20 if platform.libc_ver()[0] == "glibc" else kept >= 30
