"""Building the C++ kernels: once, for the processor at hand, and plain torch where that cannot be."""

from __future__ import annotations

import logging
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from orca_kernels.cpu import library
from orca_kernels.cpu.kernels import CpuKernels
from orca_kernels.cpu.targets import ARM_TARGETS, AVX2, AVX512, TARGETS, processor_flags
from orca_kernels.cuda import modules
from orca_kernels.reference import ReferenceKernels
from orca_kernels.select import kernels_for

CPU = torch.device("cpu")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return an empty cache of this test's own, and no library beside the sources."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "BUILT", tmp_path / "built")
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "orca-kernels"


V3 = {"sse2", *AVX2}
ARM = {"fp", "asimd", "atomics", "asimdrdm", "crc32", "bf16"}


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"sse2"}, "x86-64"),
        (V3, "x86-64-v3"),
        (V3 | AVX512, "x86-64-v4"),
        (V3 | AVX512 | {"avx512_bf16"}, "x86-64-v4+avx512bf16"),
        (V3 | AVX512 | {"avx512_bf16", "amx_bf16", "amx_int8", "amx_tile"}, "x86-64-v4+amx"),
        (V3 | {"avx512f"}, "x86-64-v3"),
        ((V3 | AVX512) - {"avx2"}, "x86-64"),
    ],
)
def test_the_best_target_that_the_processor_has(flags, name):
    assert library.usable_targets(flags, lambda: True)[0].name == name


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"fp", "asimd"}, "armv8-a"),
        (ARM, "armv8.2-a+bf16"),
        (ARM - {"atomics"}, "armv8-a"),
        (ARM | {"i8mm", "sve"}, "armv8.2-a+bf16"),
    ],
)
def test_the_best_target_of_a_processor_of_arm(monkeypatch, flags, name):
    monkeypatch.setattr(library, "TARGETS", ARM_TARGETS)
    assert library.usable_targets(flags)[0].name == name
    with pytest.raises(library.BuildError, match="x86-64 and 64-bit Arm only"):
        library.usable_targets(V3)


def test_another_kind_of_processor():
    with pytest.raises(library.BuildError, match="x86-64 and 64-bit Arm only"):
        library.usable_targets({"asimd"})


@pytest.mark.parametrize(
    ("level", "options"),
    [
        ("x86-64", ["-march=x86-64"]),
        ("x86-64-v4+avx512bf16", ["-march=x86-64-v4", "-mavx512bf16"]),
        ("armv8-a", ["-march=armv8-a"]),
        ("armv8.2-a+bf16", ["-march=armv8.2-a+bf16"]),
    ],
)
def test_the_options_of_a_level(level, options):
    assert library.level_options(level) == options


BEST = library.usable_targets(processor_flags())[0]


OTHERS = [pytest.param(each.name, marks=pytest.mark.exhaustive) for each in TARGETS if each != BEST]


@pytest.mark.parametrize("name", [BEST.name, *OTHERS])
def test_a_library_has_the_products_that_its_target_does_not_leave_to_onednn(name):
    """Also for targets that this processor cannot run: every one compiles."""
    (target,) = (target for target in TARGETS if target.name == name)
    loaded = library.load(target)
    assert loaded.target is target
    for dtype in ("float32", "bfloat16"):
        assert loaded[f"orca_attention_{dtype}"]
        assert hasattr(loaded, f"orca_linear_{dtype}") or dtype in target.onednn_products


def test_an_image_gets_a_library_of_every_level(monkeypatch, tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nfor last; do :; done\necho "$@" > "$last"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    library.build_all(tmp_path / "built")
    written = {path.name: path.read_text() for path in (tmp_path / "built").iterdir()}
    assert set(written) == {library.file_name(target.level) for target in TARGETS}
    assert len(set(written.values())) == len(written), "each with the instructions of its level"
    compiler.write_text("#!/bin/sh\necho no such option >&2; exit 1\n")
    with pytest.raises(library.CompilerError, match="no such option"):
        library.build_all(tmp_path / "other")


@pytest.mark.long
def test_of_ranks_that_start_at_once_one_builds(cache, monkeypatch, tmp_path, caplog):
    """And logs what takes so long."""
    caplog.set_level(logging.INFO)
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\necho started >> {tmp_path}/log\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with ThreadPoolExecutor(3) as pool:
        for loaded in pool.map(lambda _: library.load(), range(3)):
            assert loaded.orca_attention_float32
    (only,) = cache.iterdir()
    assert only.name.startswith("orca-x86-64")
    library.load()
    assert (tmp_path / "log").read_text() == "started\n"
    begun, ended = [record.getMessage() for record in caplog.records if record.name == library.__name__]
    assert begun.startswith("compiling the CPU kernels for x86-64")
    assert ended.startswith("compiled the CPU kernels in ")
    assert isinstance(kernels_for(CPU, torch.float32), CpuKernels)


@pytest.mark.exhaustive
def test_a_library_beside_the_sources_comes_first(cache, monkeypatch, tmp_path):
    level = library.usable_targets(processor_flags())[0].level
    library.build(level, tmp_path / "built" / library.file_name(level))
    monkeypatch.setenv("PATH", "")
    library.load()
    assert not cache.exists()


def test_without_a_compiler_plain_torch(cache, monkeypatch, caplog):
    monkeypatch.setenv("PATH", "")
    with caplog.at_level(logging.WARNING):
        assert type(kernels_for(CPU, torch.float32)) is ReferenceKernels
    (record,) = caplog.records
    assert record.getMessage() == (
        "no fused kernels on this CPU, using plain torch: no C++ compiler (c++, g++, clang++); install one or set CXX"
    )


def test_a_compiler_that_fails(cache, monkeypatch, tmp_path):
    broken = tmp_path / "compiler"
    broken.write_text("#!/bin/sh\necho it is Sunday >&2\nexit 1\n")
    broken.chmod(broken.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(library.BuildError, match="compiler: it is Sunday"):
        library.load()
    assert list(cache.iterdir()) == [], "nothing half-done stays"


@pytest.mark.long
def test_a_compiler_without_a_targets_instructions_builds_the_next_target(cache, monkeypatch, tmp_path, caplog):
    old = tmp_path / "compiler"
    old.write_text(
        '#!/bin/sh\ncase "$*" in *-mavx512f*) echo "unknown option -mavx512f" >&2; exit 1;; esac\nexec c++ "$@"\n'
    )
    old.chmod(old.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("CXX", str(old))
    newer, base = replace(TARGETS[-1], name="newer", level="x86-64+avx512f"), TARGETS[-1]
    monkeypatch.setattr(library, "TARGETS", (newer, base))
    assert library.load().target is base
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage() == (f"using the CPU kernels for x86-64, not newer: {old}: unknown option -mavx512f")
    with pytest.raises(library.CompilerError, match="unknown option"):
        library.load(newer)


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path, cache):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(library.BuildError, match="orca-kernels: "):
        library.load()


def test_an_old_gpu_gets_plain_torch(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with caplog.at_level(logging.WARNING):
        assert type(kernels_for(torch.device("cuda"), torch.float32)) is ReferenceKernels
    assert "older than Ampere" in caplog.text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ImportError("No module named 'cupy'"), "ImportError: No module named 'cupy'"),
        (RuntimeError("CuPy failed to load libnvrtc.so.13"), "RuntimeError: CuPy failed to load libnvrtc.so.13"),
    ],
    ids=["no CuPy", "no NVRTC"],
)
def test_a_gpu_on_which_no_kernel_can_be_launched_gets_plain_torch(error, words, monkeypatch, caplog):
    """CuPy is imported without NVRTC, and loads it at the first launch: that is tried, not left to the warm-up."""

    def launcher() -> object:
        if isinstance(error, ImportError):
            raise error
        return SimpleNamespace(launch=launch)

    def launch(*_: object) -> None:
        raise error

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(modules, "CupyLauncher", launcher)
    monkeypatch.setattr(torch, "zeros", lambda shape, **_: torch.empty(shape))
    with caplog.at_level(logging.WARNING):
        assert type(kernels_for(torch.device("cuda"), torch.float32)) is ReferenceKernels
    assert caplog.messages == [f"no fused kernels on this GPU, using plain torch: {words}"]
