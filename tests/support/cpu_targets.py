"""CPU targets as test parameters and their libraries, and a summary of the targets that a test run has covered."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from orca_kernels.cpu import library
from orca_kernels.cpu.library import CpuLibrary, usable_targets
from orca_kernels.cpu.targets import ARM_TARGETS, AVX512, TARGETS, TARGETS_OF, TILES, CpuTarget, processor_flags

from support.emulated_arm import emulated_arm_library, missing_tools, needs_emulator
from support.emulated_tiles import emulated_library

PROPERTY = "cpu_target"
"""Property of a test's report: the name of the test's target."""
EMULATED = " compiled as "
"""Part of the name of a substitute with emulated tiles."""


def arrangements(flags: set[str]) -> list[CpuTarget]:
    """Return all targets, and a substitute for that of AMX if a processor with these flags has only AVX-512.

    The substitute is compiled for this processor, with emulated tiles.
    """
    best = usable_targets(flags)[0]
    targets = list(TARGETS)
    for target in TARGETS:
        if target.needs >= TILES and target.missing(flags) and best.needs >= AVX512:
            targets.append(replace(best, name=f"{target.name}{EMULATED}{best.level}"))
    return targets


def tile_target(flags: set[str]) -> CpuTarget:
    """Return the target of AMX, or its substitute; raise StopIteration if the processor can run neither."""
    return next(target for target in arrangements(flags)[::-1] if EMULATED in target.name or target.needs >= TILES)


def load(target: CpuTarget | None = None) -> CpuLibrary:
    """Return the library for a target of `arrangements` or one for Arm (default: the best one for this processor)."""
    if target and needs_emulator(target):
        return emulated_arm_library(target)
    return emulated_library(target) if target and EMULATED in target.name else library.load(target)


def cpu_target_params(flags: set[str] | None = None) -> list[object]:
    """Return parameters for `pytest.mark.parametrize`; those that this processor cannot run are skipped.

    All but the target that this processor uses are marked `long`.
    """
    flags = processor_flags() if flags is None else flags
    best = usable_targets(flags)[0]
    params = []
    for target in arrangements(flags):
        marks = [] if target == best else [pytest.mark.long]
        if missing := target.missing(flags):
            marks.append(pytest.mark.skip(reason=f"this processor lacks {' '.join(missing)}"))
        params.append(pytest.param(target, id=target.name, marks=marks))
    return params


def mark_target(item: pytest.Item) -> None:
    """Record the CPU target of a parametrised test in its reports, which xdist sends to its controller.

    Not for float16, which the reference computes.
    """
    parameters = getattr(item, "callspec", None)
    values = list(parameters.params.values()) if parameters else []
    for value in values:
        if isinstance(value, CpuTarget) and "torch.float16" not in map(str, values):
            item.user_properties.append((PROPERTY, value.name))


def summary(reports: Iterable[pytest.TestReport], flags: set[str], processor: str) -> list[str]:
    """Return the lines of the summary of covered targets; empty if no test has a target."""
    tried: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for report in reports:
        for name, value in report.user_properties:
            if name == PROPERTY and report.skipped:
                skipped[str(value)] += 1
            elif name == PROPERTY and report.when == "call":
                tried[str(value)] += 1
    if not tried and not skipped:
        return []
    arm = {target.name for target in ARM_TARGETS if needs_emulator(target)}
    lines = [
        f"CPU targets tried on this processor ({processor}), with tests of each: {_counts(tried, set(tried) - arm)}"
    ]
    if tried.keys() & arm:
        lines.append(f"CPU targets tried under QEMU, the C++ alone: {_counts(tried, arm)}")
    for target in itertools.chain(*TARGETS_OF.values()):
        if target.name in tried:
            continue
        if target in TARGETS:
            needed = target.missing(flags)
        else:
            needed = missing_tools() if needs_emulator(target) else ["an x86-64 processor"]
        reason = "no test of this run selects it"
        if needed:
            reason = f"needs {' '.join(needed)} (tests skipped: {skipped[target.name]})"
        lines.append(f"CPU target not tried: {target.name}, {reason}")
    return lines


def _counts(tried: Counter[str], names: set[str]) -> str:
    """Return the targets of `names` that were tried, with the numbers of their tests."""
    return ", ".join(f"{name} ({tried[name]})" for name in sorted(names & tried.keys(), reverse=True)) or "none"
