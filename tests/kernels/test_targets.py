"""What /proc/cpuinfo says of a processor, on x86-64 and on Arm."""

from __future__ import annotations

from pathlib import Path

import pytest
from orca_kernels.cpu.targets import processor_flags, processor_name

X86 = """processor\t: 0
model name\t: AMD EPYC 9R14
flags\t\t: fpu sse2 avx2

processor\t: 1
flags\t\t: fpu
"""
ARM = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd atomics bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd40
"""


@pytest.mark.parametrize(
    ("text", "flags", "name"),
    [
        (X86, {"fpu", "sse2", "avx2"}, "AMD EPYC 9R14"),
        (ARM, {"fp", "asimd", "atomics", "bf16"}, "Arm, implementer 0x41, part 0xd40"),
        ("", set(), ""),
    ],
    ids=["x86-64", "arm", "unknown"],
)
def test_flags_and_name_of_the_first_processor(monkeypatch, text, flags, name):
    monkeypatch.setattr(Path, "read_text", lambda path, **_: text if str(path) == "/proc/cpuinfo" else "")
    assert processor_flags() == flags
    assert processor_name() == name
