"""Torch without its meta registrations: a rank imports it so, and what needs them still finds them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from orca_worker import torch_import

FAKE_TORCH = {
    "version": "__version__ = '2.13.0+cpu'",
    "__init__": "from torch import first\nfrom torch import _meta_registrations\nfrom torch import last",
    "_meta_registrations": "print('executed')\nimport torch.prims\nVALUE = 1",
    "prims": "print('prims')",
    "first": "",
    "last": "import inspect\ninspect.getmodule(inspect.currentframe())",  # asks every module for its __file__
    "compiler": "print('compiler')",
}
"""Modules of a package that imports its meta registrations like torch."""
BEGIN = "from orca_worker.torch_import import import_torch\nimport_torch()\nprint('imported')\n"


def output(program: str, *path: Path) -> list[str]:
    """Return the lines that a new interpreter prints when it runs `program`, with folders before its path."""
    folders = [*map(str, path), str(Path(torch_import.__file__).parents[1])]
    program = f"import sys; sys.path[:0] = {folders}\n{program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def fake_torch(tmp_path):
    """Return a function that writes the fake torch, with some other modules (None: without), and runs a program."""

    def run(program: str, **modules: str | None) -> list[str]:
        (tmp_path / "torch").mkdir()
        for name, text in (FAKE_TORCH | modules).items():
            if text is not None:
                (tmp_path / "torch" / f"{name}.py").write_text(text)
        return output(program, tmp_path)

    return run


@pytest.mark.parametrize(
    ("then", "printed"),
    [
        ("", []),
        ("import torch.first, json", []),
        ("import torch._meta_registrations", ["executed", "prims"]),
        ("import torch.compiler", ["executed", "prims", "compiler"]),
        ("import torch.prims as p; assert p is sys.modules['torch.prims'] and p.__spec__.name", ["executed", "prims"]),
        ("import torch.compiler, torch.prims; print(torch._meta_registrations.VALUE)",
         ["executed", "prims", "compiler", "1"]),
    ],
    ids=["nothing", "present", "itself", "another", "one-of-its-own", "two"],
)  # fmt: skip
def test_the_next_import_of_a_module_of_torch_executes_the_registrations_first_and_once(fake_torch, then, printed):
    assert fake_torch(f"{BEGIN}import torch\n{then}") == ["imported", *printed]


@pytest.mark.parametrize(
    ("modules", "printed"),
    [
        ({"__init__": "", "_meta_registrations": None}, ["imported", "compiler"]),
        ({"version": "__version__ = '2.14.0'"}, ["imported", "executed", "prims", "compiler"]),
        ({"version": None}, ["imported", "executed", "prims", "compiler"]),
        ({"last": "from torch._meta_registrations import VALUE"}, ["executed", "prims", "imported", "compiler"]),
        ({"last": "import torch\ntorch._meta_registrations.VALUE"}, ["executed", "prims", "imported", "compiler"]),
    ],
    ids=["without-them", "newer", "unknown", "imports-a-name", "uses-an-attribute"],
)
def test_other_versions_of_torch_are_imported_as_they_are(fake_torch, modules, printed):
    assert fake_torch(f"{BEGIN}import torch.compiler", **modules) == printed


@pytest.mark.parametrize(
    ("modules", "printed"),
    [({}, ["executed", "prims"]), ({"__init__": "", "_meta_registrations": None}, [])],
    ids=["postponed", "without-them"],
)
def test_torch_is_completed_when_it_is_asked_for(fake_torch, modules, printed):
    program = f"{BEGIN}from orca_worker.torch_import import complete_torch\ncomplete_torch()\ncomplete_torch()"
    assert fake_torch(program, **modules) == ["imported", *printed]


def test_an_error_of_torchs_import_is_passed_on(fake_torch):
    program = f"before = list(sys.meta_path)\ntry:\n import importlib; {BEGIN.splitlines()[0]}\n import_torch()\n"
    program += "except OSError as error:\n print(error)\nprint(sys.meta_path == before, 'torch' in sys.modules)"
    assert fake_torch(program, last="raise OSError('libtorch is damaged')") == ["libtorch is damaged", "True False"]


def test_a_process_that_has_imported_torch_stays_as_it_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    before = list(sys.meta_path)
    torch_import.import_torch()
    assert sys.meta_path == before


@pytest.mark.long
@pytest.mark.parametrize(
    "use",
    [
        "import torch.utils._content_store",  # fails unless torch._prims is imported first
        pytest.param(
            "torch.compile(lambda x: torch.nn.functional.gelu(x @ x.T), backend='aot_eager')(torch.ones(2, 3))",
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["module", "compiler"],
)
def test_a_rank_imports_no_registrations_until_something_needs_them(use):
    program = f"""import contextlib, runpy
sys.argv = ["rank", "--help"]
with contextlib.suppress(SystemExit):
    runpy.run_module("orca_worker.rank", run_name="__main__")
import torch, orca_worker.stage
assert not {{"torch._decomp.decompositions", "grpc"}} & set(sys.modules)
import gc
assert gc.isenabled() and gc.get_freeze_count() > 100_000
{use}
torch.Generator()
print(torch.linalg.eig(torch.empty(3, 3, device="meta"))[0].shape)"""
    assert output(program)[-1] == "torch.Size([3])"
