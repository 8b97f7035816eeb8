"""ctypes bindings of the C++ functions, which can log calls and replay consecutive ones in one foreign call."""

from __future__ import annotations

import ctypes
import math
import struct
from array import array
from collections.abc import Sequence
from typing import Any

import torch

from orca_kernels.recorder import OperationRecorder

POINTER, INTEGER, REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
WORDS = 18
"""64-bit words of a recorded call: the function's address, then its arguments (cpu/replay.h)."""


class Calls(OperationRecorder):  # type: ignore[no-untyped-call]
    """Functions of a library with recording of calls, and the memory for their outputs."""

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__()
        self._library = library
        self._replay = library.orca_replay
        self._replay.argtypes, self._replay.restype = [POINTER, INTEGER], None

    def function(self, name: str, types: Sequence[Any]) -> Function:
        """Return the function `name` of the library; raise AttributeError if there is none."""
        function = getattr(self._library, f"orca_{name}")
        function.argtypes, function.restype = types, None
        again = getattr(self._library, f"orca_run_{name}")
        return Function(self, function, ctypes.cast(again, POINTER).value or 0, types)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised output tensor; during a recording it is allocated in RecordingMemory."""
        if self.steps is None:
            return torch.empty(shape, dtype=dtype)
        return self.memory.empty(shape, contiguous_strides(shape), dtype)

    def note_call(self, words: list[int]) -> None:
        """Append a call that has just been made to the step of consecutive calls, if a recording is in progress."""
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
        """Call the function, and log the call if a recording is in progress."""
        self._function(*arguments)
        if self._calls.steps is not None:
            words = [self._again, *map(argument_word, self._types, arguments)]
            self._calls.note_call([*words, *[0] * (WORDS - len(words))])


class _CallsInARow:
    """A step of consecutive calls of the library, WORDS `words` per call."""

    def __init__(self, replay: Any) -> None:
        self.words = array("Q")
        self._replay = replay

    def __call__(self) -> None:
        address, count = self.words.buffer_info()
        self._replay(address, count // WORDS)


def contiguous_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides, in elements, of a dense tensor in row-major order."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def argument_word(kind: Any, value: Any) -> int:
    """Return the bytes of an argument of type `kind` as a 64-bit integer (cpu/replay.h)."""
    if kind is REAL:
        (word,) = struct.unpack("<I", struct.pack("<f", value))
        return int(word)
    return int(value or 0) & (1 << 64) - 1
