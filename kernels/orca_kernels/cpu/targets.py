"""`CpuTarget`: a build variant of the CPU kernels, and the list of all variants.

A target defines the instruction set of the C++ and the matrix products that oneDNN computes instead.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

FLOAT32, BFLOAT16 = "float32", "bfloat16"


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """A build variant for a kind of processor."""

    name: str
    level: str
    """Instruction set of the library: a level of the x86-64 psABI or an Arm architecture, with extensions after `+`."""
    needs: frozenset[str]
    """Required flags of /proc/cpuinfo (proc(5))."""
    onednn_products: frozenset[str]
    """Element types, by torch name, whose matrix products oneDNN computes; the library computes the other types."""

    def missing(self, flags: set[str]) -> list[str]:
        """Return the flags that a processor with these flags lacks, sorted."""
        return sorted(self.needs - flags)


AVX2 = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "abm", "popcnt", "sse4_2"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
TILES = frozenset({"amx_tile", "amx_bf16", "amx_int8"})
AMX_LEVEL = "x86-64-v4+avx512bf16+amx-tile+amx-bf16+amx-int8"
X86_TARGETS = (
    # Every processor with AMX has AVX512-BF16, too, and its tiles multiply both bfloat16 and bytes.
    CpuTarget("x86-64-v4+amx", AMX_LEVEL, AVX512 | {"avx512_bf16"} | TILES, frozenset()),
    CpuTarget("x86-64-v4+avx512bf16", "x86-64-v4+avx512bf16", AVX512 | {"avx512_bf16"}, frozenset()),
    CpuTarget("x86-64-v4", "x86-64-v4", AVX512, frozenset()),
    CpuTarget("x86-64-v3", "x86-64-v3", AVX2, frozenset()),
    CpuTarget("x86-64", "x86-64", frozenset({"sse2"}), frozenset({FLOAT32, BFLOAT16})),
)
"""Best first."""

NEON = frozenset({"asimd"})
ARM_TARGETS = (
    # Arm's compilers accept bfloat16 from Armv8.2 on, whose instructions they then use, too. Armv8.6 would exclude
    # processors that have bfloat16 but not all of that architecture, as Neoverse V1.
    CpuTarget("armv8.2-a+bf16", "armv8.2-a+bf16", NEON | {"atomics", "asimdrdm", "crc32", "bf16"}, frozenset()),
    CpuTarget("armv8-a", "armv8-a", NEON, frozenset()),
)
"""Best first, for 64-bit Arm (AArch64)."""
TARGETS_OF = {"x86_64": X86_TARGETS, "aarch64": ARM_TARGETS}
"""By architecture, as uname(1) names it."""
TARGETS = TARGETS_OF.get(platform.machine(), ())
"""Of this machine."""


def processor_flags() -> set[str]:
    """Return the flags of the first processor in /proc/cpuinfo (proc(5)); empty if there are none."""
    return set((_first("flags") or _first("Features")).split())  # x86-64 or Arm


def processor_name() -> str:
    """Return the model name of the first processor in /proc/cpuinfo, on Arm its maker and part; empty if unknown."""
    part = _first("CPU part")
    return _first("model name") or (part and f"Arm, implementer {_first('CPU implementer')}, part {part}")


def _first(field: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    values = (value.strip() for name, _, value in (line.partition(":") for line in lines) if name.strip() == field)
    return next(values, "")
