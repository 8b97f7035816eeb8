"""Arguments of a kernel in the form that the CUDA driver reads: an array of addresses, one per argument.

A launch copies the arguments before it returns. Packing runs for every kernel of an eager iteration, so it creates no
NumPy scalars, and integers that are the same in every layer are converted once.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

NUMBERS = frozenset({ctypes.c_int, ctypes.c_longlong, ctypes.c_float})
"""Types of arguments that are no tensors. `isinstance` of other things than tensors runs Python code of torch."""


class Packed(NamedTuple):
    """Packed arguments, valid while this object exists."""

    addresses: array[int]
    """Address of each argument."""
    pointers: array[int]
    """The values of the arguments that are tensors."""
    arguments: Sequence[Any]
    """The other addresses are inside of these."""

    @property
    def address(self) -> int:
        """Address of the array that the driver reads."""
        return self.addresses.buffer_info()[0]


def pack(arguments: Sequence[Any]) -> Packed:
    """Pack tensors, of which a kernel gets the address, and ctypes values of the parameters' types."""
    pointers = array("Q", [0 if type(argument) in NUMBERS else argument.data_ptr() for argument in arguments])
    first, _ = pointers.buffer_info()
    addresses = [
        ctypes.addressof(argument) if type(argument) in NUMBERS else first + 8 * place
        for place, argument in enumerate(arguments)
    ]
    return Packed(array("Q", addresses), pointers, arguments)


@lru_cache(maxsize=4096)
def integers(*values: int) -> tuple[ctypes.c_int, ...]:
    """Return integers as arguments of the type int. Nothing may change them. Raises OverflowError beyond 32 bits."""
    for value in values:
        if not -(1 << 31) <= value < 1 << 31:
            raise OverflowError(f"{value} is too large for a kernel's parameter of 32 bits")
    return tuple(map(ctypes.c_int, values))
