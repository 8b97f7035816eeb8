"""Libraries of CPU targets, and other instructions than a target's own, that multiply integers, as test parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from orca_kernels.cpu.library import CpuLibrary
from orca_kernels.cpu.targets import AVX2, X86_TARGETS, CpuTarget, processor_flags

from support.cpu_targets import EMULATED, arrangements, cpu_target_params, load
from support.emulated_arm import EmulatedArmLibrary, emulated_arm_params
from support.emulated_vnni import avx_vnni_library

PAIRS, AVX_VNNI = "without VNNI", "emulated AVX-VNNI"
"""Instructions: those of any target, or VPDPBUSD with 256 bits, emulated."""
NEEDS_AVX2 = pytest.mark.skipif(not processor_flags() >= AVX2, reason="needs AVX2")


def on_avx2(instructions: str, name: str) -> object:
    """Return a parameter (target, instructions) for the target that needs AVX2 alone."""
    target = next(target for target in X86_TARGETS if target.needs == AVX2)
    return pytest.param(target, instructions, id=name, marks=[pytest.mark.long, NEEDS_AVX2])


def with_own_instructions(params: list[object]) -> list[object]:
    """Return parameters (target,), then those of Arm, as parameters (target, "")."""
    return [
        pytest.param(*param.values, "", id=param.id, marks=param.marks)  # type: ignore[attr-defined]
        for param in (*params, *emulated_arm_params())
    ]


def emulated_tiles() -> list[object]:
    """Return parameters (target, "") of the target of AMX with emulated tiles, if this processor needs them."""
    targets = (target for target in arrangements(processor_flags()) if EMULATED in target.name)
    return [pytest.param(target, "", id=target.name) for target in targets]


def own_targets() -> list[object]:
    """Return parameters (target,) of all targets but emulated ones."""
    return [param for param in cpu_target_params() if EMULATED not in param.id]  # type: ignore[attr-defined]


def every_arrangement() -> list[object]:
    """Return parameters (target, instructions): all targets with their own instructions, and those with others."""
    return [
        *emulated_tiles(),
        pytest.param(None, PAIRS, id=PAIRS),
        *with_own_instructions(own_targets()),
        on_avx2(AVX_VNNI, AVX_VNNI),
    ]


@contextmanager
def opened(target: CpuTarget | None, instructions: str) -> Iterator[CpuLibrary]:
    """Yield the library of a target (None: the best one for this processor) with these instructions."""
    library = avx_vnni_library(target) if target and instructions == AVX_VNNI else load(target)
    if instructions == PAIRS:
        library.vnni = False
    with library.tensors_noted() if isinstance(library, EmulatedArmLibrary) else nullcontext():
        yield library
