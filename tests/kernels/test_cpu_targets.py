"""Every CPU target is a test parameter, and a run's last lines name those that it could not try."""

from __future__ import annotations

from types import SimpleNamespace

from orca_kernels.cpu.targets import ARM_TARGETS, AVX2, AVX512, TARGETS, TILES
from support import cpu_targets
from support.cpu_targets import arrangements, cpu_target_params, summary, tile_target

ZEN3 = {"sse2", *AVX2}
ZEN4 = ZEN3 | AVX512 | {"avx512_bf16"}
NAMES = [target.name for target in TARGETS]


def report(target: str | None, when: str = "call", outcome: str = "passed") -> SimpleNamespace:
    properties = [("cpu_target", target)] if target else []
    return SimpleNamespace(user_properties=properties, when=when, skipped=outcome == "skipped", outcome=outcome)


def test_the_target_of_amx_is_tried_on_every_processor_with_avx512():
    """With emulated tiles, compiled for this processor."""
    for flags, level in ((ZEN3 | AVX512, "x86-64-v4"), (ZEN4, "x86-64-v4+avx512bf16")):
        *targets, amx = arrangements(flags)
        assert targets == list(TARGETS)
        assert (amx.level, amx.missing(flags)) == (level, [])
        assert amx.name == f"x86-64-v4+amx compiled as {level}"
        assert tile_target(flags) == amx
    assert arrangements(ZEN3) == list(TARGETS), "panels are narrower than two tiles"
    assert arrangements(ZEN4 | TILES) == list(TARGETS)
    assert tile_target(ZEN4 | TILES) == TARGETS[0]


def test_targets_without_instructions_are_skipped_with_a_reason():
    params = cpu_target_params(ZEN4)
    marks = {param.id: [mark.name for mark in param.marks] for param in params}
    assert marks.pop("x86-64-v4+avx512bf16") == [], "the target that this processor uses"
    assert marks.pop("x86-64-v4+amx") == ["long", "skip"]
    assert list(marks.values()) == [["long"]] * len(marks)
    (lacking,) = (mark for param in params for mark in param.marks if mark.name == "skip")
    assert lacking.kwargs["reason"] == "this processor lacks amx_bf16 amx_int8 amx_tile"


def test_the_summary_names_what_was_tried_and_what_was_not(monkeypatch):
    monkeypatch.setattr(cpu_targets, "missing_tools", list)
    reports = [
        report(None),
        *[report("x86-64-v3")] * 3,
        report("x86-64-v3", when="teardown", outcome="failed"),
        report("x86-64", outcome="failed"),
        *[report(name, when="setup", outcome="skipped") for name in NAMES[:3]],
    ]
    *lines, newer_arm, arm = summary(reports, ZEN3, "AMD EPYC")
    assert lines == [
        "CPU targets tried on this processor (AMD EPYC), with tests of each: x86-64-v3 (3), x86-64 (1)",
        "CPU target not tried: x86-64-v4+amx, needs amx_bf16 amx_int8 amx_tile avx512_bf16 avx512bw avx512cd avx512dq "
        "avx512f avx512vl (tests skipped: 1)",
        "CPU target not tried: x86-64-v4+avx512bf16, needs avx512_bf16 avx512bw avx512cd avx512dq avx512f avx512vl "
        "(tests skipped: 1)",
        "CPU target not tried: x86-64-v4, needs avx512bw avx512cd avx512dq avx512f avx512vl (tests skipped: 1)",
    ]
    assert newer_arm == "CPU target not tried: armv8.2-a+bf16, no test of this run selects it"
    assert arm == "CPU target not tried: armv8-a, no test of this run selects it"
    assert "CPU target not tried: x86-64, no test of this run selects it" in summary(
        [report("x86-64-v3")], ZEN3, "AMD EPYC"
    )
    assert summary([report(None)], ZEN3, "AMD EPYC") == []


def test_the_summary_names_targets_for_arm_apart(monkeypatch):
    """They run under an emulator; without one it is what they need."""
    newer, base = (target.name for target in ARM_TARGETS)
    monkeypatch.setattr(cpu_targets, "missing_tools", list)
    reports = [report("x86-64-v3"), *[report(base)] * 2]
    assert summary(reports, ZEN3, "AMD EPYC")[:2] == [
        "CPU targets tried on this processor (AMD EPYC), with tests of each: x86-64-v3 (1)",
        f"CPU targets tried under QEMU, the C++ alone: {base} (2)",
    ]
    monkeypatch.setattr(cpu_targets, "missing_tools", lambda: ["aarch64-linux-gnu-g++", "qemu-aarch64"])
    skipped = [report("x86-64-v3"), *[report(newer, when="setup", outcome="skipped")] * 3]
    assert summary(skipped, ZEN3, "AMD EPYC")[-2:] == [
        f"CPU target not tried: {newer}, needs aarch64-linux-gnu-g++ qemu-aarch64 (tests skipped: 3)",
        f"CPU target not tried: {base}, needs aarch64-linux-gnu-g++ qemu-aarch64 (tests skipped: 0)",
    ]
