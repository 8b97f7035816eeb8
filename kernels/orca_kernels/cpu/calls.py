"""`Calls`: the C++ functions, called one by one, and again by one call for all of a recording that stand in a row."""

from __future__ import annotations

import ctypes
import struct
import weakref
from array import array
from collections.abc import Sequence
from typing import Any

import torch

from orca_kernels.recorder import OperationRecorder

POINTER, INTEGER, REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
WORDS = 16
"""64-bit words of a call, its function first (cpu/replay.h)."""


class Calls(OperationRecorder):  # type: ignore[no-untyped-call]
    """Functions of a library, whose calls are recorded, and the memory for what they return.

    All recordings share one memory, as one is replayed at a time: what is let go while one is made serves its later
    calls and the next recording. A recording's output stays as long as somebody has it.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__()
        self._library = library
        self._replay = library.orca_replay
        self._replay.argtypes, self._replay.restype = [POINTER, INTEGER], None
        self._free: list[torch.Tensor] = []

    def function(self, name: str, types: Sequence[Any]) -> Function | None:
        """Returns the library's function, if it has it."""
        function = getattr(self._library, f"orca_{name}", None)
        if function is None:
            return None
        function.argtypes, function.restype = types, None
        again = getattr(self._library, f"orca_run_{name}")
        return Function(self, function, ctypes.cast(again, POINTER).value or 0, types)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns memory for an output; in a recording nobody else gets it."""
        if self.steps is None:
            return torch.empty(shape, dtype=dtype)
        size = dtype.itemsize * torch.Size(shape).numel()
        place = min((place for place in self._free if len(place) >= size), key=len, default=None)
        if place is None:
            place = torch.empty(size, dtype=torch.uint8)
        else:
            self._free = [other for other in self._free if other is not place]
        part = place.numpy()[:size]
        weakref.finalize(part, self._free_again, place)  # the tensor's storage holds it
        return torch.from_numpy(part).view(dtype).view(shape)

    def _free_again(self, place: torch.Tensor) -> None:
        self._free.append(place)

    def note_call(self, words: list[int]) -> None:
        """Adds a call that has just been made to those right before it, if a recording is being made."""
        if self.steps is None:
            return
        last = self.steps[-1] if self.steps else None
        if not isinstance(last, _CallsInARow):
            last = _CallsInARow(self._replay)
            self.steps.append(last)
        last.words.extend(words)


class Function:
    """One function of the library."""

    __slots__ = ("_again", "_calls", "_function", "_types")

    def __init__(self, calls: Calls, function: Any, again: int, types: Sequence[Any]) -> None:
        self._calls = calls
        self._function = function
        self._again = again
        self._types = types

    def __call__(self, *arguments: Any) -> None:
        """Calls it."""
        self._function(*arguments)
        if self._calls.steps is not None:
            words = [self._again, *map(_word, self._types, arguments)]
            self._calls.note_call([*words, *[0] * (WORDS - len(words))])


class _CallsInARow:
    """A step: calls that nothing of torch's stands between, WORDS `words` each."""

    def __init__(self, replay: Any) -> None:
        self.words = array("Q")
        self._replay = replay

    def __call__(self) -> None:
        address, count = self.words.buffer_info()
        self._replay(address, count // WORDS)


def _word(kind: Any, value: Any) -> int:
    """The bytes of an argument as one number."""
    if kind is REAL:
        (word,) = struct.unpack("<I", struct.pack("<f", value))
        return int(word)
    return int(value or 0) & (1 << 64) - 1
