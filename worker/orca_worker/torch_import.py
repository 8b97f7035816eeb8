"""`import_torch`: imports torch into a rank process without its Python functions for meta tensors.

`import torch` executes `torch._meta_registrations`, which computes in Python the shapes of operators on tensors without
data (device "meta"). With what it imports, that takes a quarter of the import. Ranks have no such tensors; torch's
compiler and export have. The module is postponed, so that torch stays complete:

- The next import of any module of torch executes it first: of the module itself, of torch's compiler, of anything that
  ORCA does not need. Only what uses it without an import fails: operators on meta tensors raise NotImplementedError,
  and `torch.Generator()` raises RuntimeError. Call `complete_torch` before these.
- Only with VERSIONS, whose modules have been read for such effects. Others are imported as usual.
- If torch uses an attribute of the module while it is imported, the module is executed then.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "torch"
NAME = "_meta_registrations"
POSTPONED = f"{PACKAGE}.{NAME}"
VERSIONS = ("2.13",)
"""Of torch, without the last number."""


def import_torch() -> None:
    """Import torch, and postpone POSTPONED, if this process has not imported torch. For a process with one thread."""
    if PACKAGE in sys.modules or _version() not in VERSIONS:
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module(PACKAGE)
    finally:
        finder.forget()


def complete_torch() -> None:
    """Execute POSTPONED, unless that has happened."""
    with contextlib.suppress(ModuleNotFoundError):  # in another version
        importlib.import_module(POSTPONED)


def _version() -> str:
    """Return the version of torch, without the last number, from its version.py; "" if it cannot be read."""
    spec = PathFinder.find_spec(PACKAGE)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if spec is not None and spec.origin is not None:
            text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
            match = re.search(r"""^__version__ *= *['"](\d+\.\d+)\.""", text, re.MULTILINE)
            return match[1] if match else ""
    return ""


class _Finder(MetaPathFinder):
    """Finds POSTPONED during the import of torch; afterwards waits for the next import of a module of torch."""

    def __init__(self) -> None:
        self._loader: _PostponingLoader | None = None
        self._waits = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See MetaPathFinder."""
        if self._waits and fullname.startswith(f"{PACKAGE}."):
            return self._execute_before(fullname)
        postpones = fullname == POSTPONED and self._loader is None
        spec = PathFinder.find_spec(fullname, path, target) if postpones else None
        if spec is not None and spec.loader is not None:
            spec.loader = self._loader = _PostponingLoader(spec.loader)
        return spec

    def forget(self) -> None:
        """Remove POSTPONED, so that its next import executes it; remove this finder if there is nothing to wait for."""
        if self._loader is None or self._loader.executed or PACKAGE not in sys.modules:
            sys.meta_path.remove(self)
            return
        del sys.modules[POSTPONED]
        vars(sys.modules[PACKAGE]).pop(NAME, None)
        self._waits = True

    def _execute_before(self, fullname: str) -> ModuleSpec | None:
        """Execute POSTPONED; return None, or the spec of a module that has been imported by that."""
        self._waits = False  # the import system iterates over sys.meta_path: this finder stays there
        importlib.import_module(POSTPONED)
        module = sys.modules.get(fullname)
        return None if module is None else ModuleSpec(fullname, _PresentLoader(module))


class _PostponingLoader(Loader):
    """Executes a module when one of its attributes is first used."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.executed = False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See Loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Give the module a `__getattr__` (PEP 562) that executes it."""

        def attribute(name: str) -> Any:
            # `inspect` asks every module for its __file__ and the like.
            if name.startswith("__") and name.endswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            del vars(module)["__getattr__"]
            self.executed = True
            self._loader.exec_module(module)
            return getattr(module, name)

        vars(module)["__getattr__"] = attribute


class _PresentLoader(Loader):
    """Loads a module that exists."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__
        module.__spec__ = None  # with a spec, the import system would execute the module again by that

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """See Loader."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec."""
        module.__spec__ = self._spec
