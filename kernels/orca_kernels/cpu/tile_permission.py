"""Asks Linux to let this process use AMX tiles: without a permission their instructions raise SIGILL."""

from __future__ import annotations

import ctypes

SYS_ARCH_PRCTL = 158
"""Of x86-64."""
ARCH_REQ_XCOMP_PERM = 0x1023
XFEATURE_XTILEDATA = 18


def request_tiles() -> bool:
    """Return True if all threads of this process may use tiles from now on.

    Linux grants this since 5.16, to a process and the processes that it forks, on a processor that has tiles, unless a
    thread's stack for signals is too small for them (https://docs.kernel.org/arch/x86/xstate.html).
    """
    arguments = (SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
    return int(ctypes.CDLL(None).syscall(*map(ctypes.c_long, arguments))) == 0
