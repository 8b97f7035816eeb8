"""CPU targets as test parameters, and a summary of the targets that a test run has covered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from orca_kernels.cpu.library import best_target
from orca_kernels.cpu.targets import TARGETS, CpuTarget, processor_flags

PROPERTY = "cpu_target"
"""Property of a test's report: the name of the test's target."""


def arrangements(flags: set[str]) -> list[CpuTarget]:
    """Return all targets, and a substitute for each target that a processor with these flags cannot run.

    The substitute keeps the target's division of products between the library and oneDNN, but is compiled for this
    processor. A substitute that equals another target is left out.
    """
    best = best_target(flags)
    possible = [target for target in TARGETS if not target.missing(flags)]
    known = {(target.level, target.onednn_products) for target in possible}
    targets = list(TARGETS)
    for target in TARGETS:
        products = target.onednn_products | best.onednn_products
        if target.missing(flags) and (best.level, products) not in known:
            known.add((best.level, products))
            name = f"{target.name} compiled as {best.level}"
            targets.append(replace(best, name=name, onednn_products=products))
    return targets


def cpu_target_params(flags: set[str] | None = None) -> list[object]:
    """Return parameters for `pytest.mark.parametrize`; those that this processor cannot run are skipped.

    All but the target that this processor uses are marked `long`.
    """
    flags = processor_flags() if flags is None else flags
    best = best_target(flags)
    params = []
    for target in arrangements(flags):
        marks = [] if target == best else [pytest.mark.long]
        if missing := target.missing(flags):
            marks.append(pytest.mark.skip(reason=f"this processor lacks {' '.join(missing)}"))
        params.append(pytest.param(target, id=target.name, marks=marks))
    return params


def mark_target(item: pytest.Item) -> None:
    """Record the CPU target of a parametrised test in its reports, which xdist sends to its controller."""
    parameters = getattr(item, "callspec", None)
    for value in parameters.params.values() if parameters else ():
        if isinstance(value, CpuTarget):
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
    ran = [f"{name} ({count})" for name, count in sorted(tried.items(), reverse=True)]
    lines = [f"CPU targets tried on this processor ({processor}), with tests of each: {', '.join(ran) or 'none'}"]
    for target in TARGETS:
        if missing := target.missing(flags):
            count = skipped[target.name]
            lines.append(f"CPU target not tried: {target.name}, needs {' '.join(missing)} (tests skipped: {count})")
        elif target.name not in tried:
            lines.append(f"CPU target not tried: {target.name}, no test of this run selects it")
    return lines
