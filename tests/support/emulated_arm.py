"""The CPU kernels for 64-bit Arm on another processor: compiled by a cross-compiler, and called under QEMU.

Only the C++ runs under the emulator (emulated_arm.cpp). Torch stays in the process of the tests: a call sends the
memory to which its arguments point, and receives it back.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from orca_kernels.cpu.library import FLAGS, SOURCES, CpuLibrary, file_name, level_options
from orca_kernels.cpu.targets import ARM_TARGETS, TARGETS, CpuTarget

from support.once import cache_folder, once

if TYPE_CHECKING:
    import torch

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
PACKAGES = "Debian: g++-aarch64-linux-gnu, qemu-user"
DRIVER = Path(__file__).with_suffix(".cpp")
SYSTEM = "/usr/aarch64-linux-gnu"
"""Debian's folder of the C and C++ libraries for Arm."""
PROCESSORS = {"armv8-a": "cortex-a53"}
"""Emulated processors by target, which know no later instructions; the default knows all that QEMU emulates."""
REQUEST = struct.Struct("<64s17Q17QQ17Q")
"""Of emulated_arm.cpp."""
WORDS = 17


def needs_emulator(target: CpuTarget) -> bool:
    """Return True if the target is for Arm and this machine is not."""
    return target in ARM_TARGETS and target not in TARGETS


def missing_tools() -> list[str]:
    """Return the programs that this machine lacks to call kernels for Arm."""
    return [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]


class EmulatedArmLibrary(CpuLibrary):
    """The functions of a target's library, in a process of the emulator; `tensors_noted` must surround all calls."""

    def __init__(self, target: CpuTarget) -> None:
        self.target = target
        self.storages: dict[int, int] = {}
        """Bytes of the storages whose addresses torch has returned since the last call, by address."""
        path = _compiled(target)
        self._names = _symbols(path)
        command = [EMULATOR, "-cpu", PROCESSORS.get(target.name, "max"), "-L", SYSTEM, _driver(), path]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        atexit.register(self._end)

    def __getitem__(self, name: Any) -> Any:
        """Return a function; for those of replay.h, which are called instead of it, no address."""
        if name not in self._names:
            raise AttributeError(name)
        return 0 if name.startswith("orca_run_") else EmulatedFunction(self, name)

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    @contextmanager
    def tensors_noted(self) -> Iterator[None]:
        """Note the storage of every tensor whose address is asked for: an address alone does not tell its size."""
        import torch  # not above: the process that only distributes tests does not need it

        address_of = torch.Tensor.data_ptr

        def noting(tensor: torch.Tensor) -> int:
            storage = tensor.untyped_storage()
            self.storages[storage.data_ptr()] = storage.nbytes()
            return address_of(tensor)

        with mock.patch.object(torch.Tensor, "data_ptr", noting):
            yield

    def call(self, name: str, types: Sequence[Any], arguments: Sequence[Any]) -> None:
        """Call a function with `orca_run_X`, or `orca_all_reduce_X` as emulated_arm.cpp says."""
        from orca_kernels.cpu.calls import POINTER, argument_word

        words, buffers, used = [0] * WORDS, [0] * WORDS, list[int]()
        for index, (kind, argument) in enumerate(zip(types, arguments, strict=True)):
            words[index] = argument_word(kind, argument)
            if kind is not POINTER or not argument:
                continue
            start = next(start for start, size in self.storages.items() if start <= argument < start + size)
            if start not in used:
                used.append(start)
            words[index], buffers[index] = argument - start, 1 + used.index(start)
        sizes = [self.storages[start] for start in used]
        self.storages.clear()
        request = REQUEST.pack(name.encode(), *words, *buffers, len(sizes), *sizes, *[0] * (WORDS - len(sizes)))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(request)
        for start, size in zip(used, sizes, strict=True):
            self._process.stdin.write(ctypes.string_at(start, size))
        self._process.stdin.flush()
        for start, size in zip(used, sizes, strict=True):
            reply = self._process.stdout.read(size)
            if len(reply) < size:
                raise RuntimeError(f"{name}: the emulator ended with exit code {self._process.wait()}")
            ctypes.memmove(start, reply, size)


class EmulatedFunction:
    """One function of an `EmulatedArmLibrary`, with the attributes of a function of ctypes."""

    def __init__(self, library: EmulatedArmLibrary, name: str) -> None:
        self.argtypes: Sequence[Any] = ()
        self.restype: Any = None
        self._library = library
        self._name = name if "all_reduce" in name else name.replace("orca_", "orca_run_", 1)

    def __call__(self, *arguments: Any) -> None:
        self._library.call(self._name, self.argtypes, arguments)


@functools.cache
def emulated_arm_library(target: CpuTarget) -> EmulatedArmLibrary:
    """Return the library of a target, whose process all tests of this process share."""
    return EmulatedArmLibrary(target)


def emulated_arm_params() -> list[object]:
    """Return parameters for `pytest.mark.parametrize`: the targets that need an emulator here, skipped without one."""
    marks = [pytest.mark.long, pytest.mark.qemu]
    if missing := missing_tools():
        marks.append(pytest.mark.skip(reason=f"no {', no '.join(missing)} ({PACKAGES})"))
    return [pytest.param(target, id=target.name, marks=marks) for target in ARM_TARGETS if needs_emulator(target)]


def _compiled(target: CpuTarget) -> Path:
    """Return the library, compiled with the options of cpu/library.py."""
    command = [COMPILER, *FLAGS, *level_options(target.level), "-Werror", str(SOURCES / "kernels.cpp"), "-o"]
    return once(_folder() / file_name(target.level), functools.partial(_run, command))


def _driver() -> Path:
    digest = hashlib.sha256(DRIVER.read_bytes()).hexdigest()[:16]
    command = [COMPILER, "-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror", str(DRIVER), "-ldl", "-pthread", "-o"]
    return once(_folder() / f"driver-{digest}", functools.partial(_run, command))


def _folder() -> Path:
    return cache_folder() / "emulated-arm"


def _run(command: Sequence[str], path: Path) -> None:
    done = subprocess.run([*command, path], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


def _symbols(path: Path) -> set[str]:
    command = ["aarch64-linux-gnu-nm", "--dynamic", "--defined-only", "--format=just-symbols", path]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
