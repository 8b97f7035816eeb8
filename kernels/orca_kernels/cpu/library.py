"""Builds the C++ kernels for a `CpuTarget` and loads them, once per machine, level and source.

A library in the sources' folder (built by `python -m orca_kernels.cpu.library`, as in the worker's image) takes
precedence; otherwise the library is built into the user's cache on first use, for the best target that the processor,
the system and the compiler support. The file name contains the level and a digest of the sources, so versions never
mix. A lock lets one process build while others wait; the finished file is renamed into place, so it is always complete.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orca_kernels.cpu.targets import AVX512, TARGETS, TILES, CpuTarget, processor_flags
from orca_kernels.cpu.tile_permission import request_tiles

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent
BUILT = SOURCES / "built"
FLAGS = (
    "-O3", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fPIC", "-shared",
    "-fvisibility=hidden", "-fopenmp", "-Wall", "-Wextra", "-Wno-psabi",
)  # fmt: skip
COMPILERS = ("c++", "g++", "clang++")
BUILD_SECONDS = 120.0
IMAGE_BUILD_SECONDS = 900.0
"""Of each compiler of an image's build: five run at once, maybe beside other builds."""
LOCK_POLL_SECONDS = 0.05


class BuildError(Exception):
    """The library cannot be built or loaded; the message is one line."""


class CompilerError(BuildError):
    """The compiler refuses the sources or a target's level."""


class CpuLibrary(ctypes.CDLL):
    """The C++ functions, loaded for `target`. Raises OSError if the file cannot be loaded."""

    def __init__(self, path: Path, target: CpuTarget) -> None:
        super().__init__(str(path))
        self.target = target

    @functools.cached_property
    def dot_products(self) -> bool:
        """Whether bfloat16 is multiplied by dot products; otherwise the elements are widened.

        Measured in less than a millisecond (cpu/dot_products.h), on a processor that can run the target.
        """
        return hasattr(self, "orca_dot_products_pay") and bool(self.orca_dot_products_pay())

    @functools.cached_property
    def tiles(self) -> bool:
        """Whether bfloat16 and integers of w8a8 are multiplied on AMX tiles.

        Measured like `dot_products`, with products of bfloat16 (cpu/tiles.h).
        """
        return hasattr(self, "orca_tiles_pay") and request_tiles() and bool(self.orca_tiles_pay())

    @functools.cached_property
    def vnni(self) -> bool:
        """Whether integers are multiplied by instructions of VNNI: if compiler and processor have them.

        Those of w8a8 and w4a8 by VPDPBUSD (cpu/integer_linear.h); with AVX-512, those of attention over a cache of
        integers by VPDPWSSD (cpu/integer_attention.h).
        """
        flag = "avx512_vnni" if self.target.needs >= AVX512 else "avx_vnni"
        return hasattr(self, "orca_linear_w8a8_vnni_float32") and flag in processor_flags()


def load(target: CpuTarget | None = None) -> CpuLibrary:
    """Return the library for a target, built if necessary.

    The default is this processor's best target; if the compiler does not support it, the next one, with a warning.
    Raises BuildError. Calling a target whose instructions this processor lacks ends the process (SIGILL).
    """
    if target is not None:
        return _load(target)
    failure: CompilerError | None = None
    targets = usable_targets(processor_flags())
    for candidate in targets:
        try:
            library = _load(candidate)
        except CompilerError as error:
            failure = failure or error
            continue
        if failure is not None:
            logger.warning("using the CPU kernels for %s, not %s: %s", candidate.name, targets[0].name, failure)
        return library
    assert failure is not None
    raise failure


def usable_targets(flags: set[str], request: Callable[[], bool] = request_tiles) -> list[CpuTarget]:
    """Return the targets for a processor with these flags, best first; raise BuildError if there is none.

    `request` asks the system for the use of AMX tiles, only if the processor has them.
    """
    targets = [target for target in TARGETS if not target.missing(flags)]
    if any(target.needs >= TILES for target in targets) and not request():
        logger.warning("Linux does not permit AMX tiles (it does since 5.16), using other instructions")
        targets = [target for target in targets if not target.needs >= TILES]
    if not targets:
        raise BuildError(
            f"the CPU kernels support x86-64 and 64-bit Arm only, not this processor ({platform.machine()})"
        )
    return targets


def _load(target: CpuTarget) -> CpuLibrary:
    name = file_name(target.level)
    for folder in (BUILT, _cache()):
        if (folder / name).is_file():
            return _open(folder / name, target)
    build(target.level, _cache() / name)
    return _open(_cache() / name, target)


def file_name(level: str) -> str:
    """Return the name of the library's file for a level of `CpuTarget`."""
    return f"orca-{level}-{_digest()}.so"


def level_options(level: str) -> list[str]:
    """Return the compiler's options for a level of `CpuTarget`."""
    if level.startswith("arm"):
        return [f"-march={level}"]
    architecture, *extensions = level.split("+")
    return [f"-march={architecture}", *(f"-m{extension}" for extension in extensions)]


def build(level: str, path: Path) -> None:
    """Compile for a level with extensions; raise BuildError without a compiler, CompilerError with its message.

    If another process builds the same file, wait for that build for up to BUILD_SECONDS.
    """
    compiler = _compiler()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            if not path.is_file():
                _compile(compiler, level, path, BUILD_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{path.parent}: {error}") from error


def build_all(folder: Path) -> None:
    """Compile for every level into a folder in which nobody else builds; raise BuildError or CompilerError."""
    compiler = _compiler()
    levels = sorted({target.level for target in TARGETS})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for done in [
                pool.submit(_compile, compiler, level, folder / file_name(level), IMAGE_BUILD_SECONDS)
                for level in levels
            ]:
                done.result()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{folder}: {error}") from error


def _compiler() -> str:
    compiler = os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        raise BuildError(f"no C++ compiler ({', '.join(COMPILERS)}); install one or set CXX")
    return compiler


def _compile(compiler: str, level: str, path: Path, seconds: float) -> None:
    text = "compiling the CPU kernels for %s into %s, 20 seconds to a minute: later starts find them there"
    logger.info(text, level, path.parent)
    begin = time.monotonic()
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".so.part")
    os.close(handle)
    try:
        command = [compiler, *FLAGS, *level_options(level), str(SOURCES / "kernels.cpp"), "-o", temporary]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        if done.returncode:
            error = done.stderr.strip().splitlines()[0] if done.stderr else f"exit code {done.returncode}"
            raise CompilerError(f"{compiler}: {error}")
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
        logger.info("compiled the CPU kernels in %.0f s", time.monotonic() - begin)
    finally:
        Path(temporary).unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold an advisory lock on a folder (flock(2)), released at the latest when the process exits.

    Proceeds without the lock after BUILD_SECONDS and on file systems without locks: a second build only costs time.
    """
    folder_descriptor = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + BUILD_SECONDS
        while time.monotonic() < deadline:
            try:
                fcntl.flock(folder_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOCK_POLL_SECONDS)
            except OSError:
                break
        yield
    finally:
        os.close(folder_descriptor)


def _open(path: Path, target: CpuTarget) -> CpuLibrary:
    import torch  # noqa: F401  so that the library uses torch's OpenMP runtime: two runtimes would compete for cores

    try:
        return CpuLibrary(path, target)
    except OSError as error:
        raise BuildError(f"{path}: {error}") from error


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orca-kernels"


def _digest() -> str:
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".h"))
    text = "\n".join([*FLAGS, *(path.read_text(encoding="utf-8") for path in sources)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


if __name__ == "__main__":
    build_all(BUILT)
