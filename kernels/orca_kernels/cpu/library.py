"""Builds the C++ kernels and loads them: once per machine and source, for the processor that runs them.

A library that was built beside the sources (`python -m orca_kernels.cpu.library`, as the worker's image does) is taken
first; else one is built into the user's cache on first use. Its name carries a digest of the sources and the target, so
another version never meets it, and it appears by renaming, so several ranks may build at once.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent
BUILT = SOURCES / "built"
FLAGS = (
    "-O3", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fPIC", "-shared",
    "-fvisibility=hidden", "-fopenmp", "-Wall", "-Wextra", "-Wno-psabi",
)  # fmt: skip
AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
TARGETS = {
    "x86-64-v4+avx512bf16": {*AVX512, "avx512_bf16"},
    "x86-64-v4": AVX512,
    "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "x86-64": {"sse2"},
}
"""Micro-architecture levels of the x86-64 psABI with extensions, best first; what /proc/cpuinfo must list for them."""
COMPILERS = ("c++", "g++", "clang++")
BUILD_SECONDS = 120.0


class BuildError(Exception):
    """No kernels: the message says in one line why."""


def load() -> ctypes.CDLL:
    """Returns the library for this processor, built if need be; raises BuildError."""
    target = best_target(_processor_flags())
    name = f"orca-{target}-{_digest()}.so"
    for folder in (BUILT, _cache()):
        if (folder / name).is_file():
            return _open(folder / name)
    build(target, _cache() / name)
    return _open(_cache() / name)


def best_target(flags: set[str]) -> str:
    """Returns the highest level that a processor with these flags has; raises BuildError if it has none.

    With AMX it leaves bfloat16 products to oneDNN, which has them on tiles.
    """
    if "amx_bf16" in flags:
        flags = flags - {"avx512_bf16"}
    for target, needed in TARGETS.items():
        if needed <= flags:
            return target
    raise BuildError("the CPU kernels know x86-64 only")


def build(target: str, path: Path) -> None:
    """Compiles for one level; raises BuildError without a compiler, or with what it says."""
    compiler = os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        raise BuildError(f"there is no C++ compiler ({', '.join(COMPILERS)})")
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".so.part")
        os.close(handle)
        level, *extensions = target.split("+")
        options = [f"-march={level}", *(f"-m{extension}" for extension in extensions)]
        command = [compiler, *FLAGS, *options, str(SOURCES / "kernels.cpp"), "-o", temporary]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
        if done.returncode:
            raise BuildError(f"{compiler} says: {done.stderr.strip().splitlines()[0] if done.stderr else 'nothing'}")
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{path.parent}: {error}") from error
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def _open(path: Path) -> ctypes.CDLL:
    import torch  # noqa: F401  its OpenMP runtime must be the one in this process: two of them fight over the cores

    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"{path}: {error}") from error


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orca-kernels"


def _digest() -> str:
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".h"))
    text = "\n".join([*FLAGS, *(path.read_text(encoding="utf-8") for path in sources)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _processor_flags() -> set[str]:
    """What the kernel lists for the first processor (proc(5)); empty where it lists nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return set(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


if __name__ == "__main__":
    for level in TARGETS if platform.machine() == "x86_64" else ():
        build(level, BUILT / f"orca-{level}-{_digest()}.so")
