"""Detects reads of pickles: in Python processes with `environment(folder)`, reading a pickle raises and is recorded.

    monkeypatch.setenv(...) for each item of environment(folder), start the processes, then:
    trapped(folder) == [] and processes(folder) has every expected process

`environment` puts a `sitecustomize` module first on the path. Python imports it before other modules, so modules that
keep or subclass `pickle.Unpickler` get the trap, too. Trapped functions: `pickle.loads`, `pickle.load`,
`pickle.Unpickler` in both implementations, `torch.load`, and torch's collective calls on objects.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

TRAPPED, PROCESSES = "trapped.jsonl", "processes.jsonl"
SITECUSTOMIZE = """
import importlib.util
from pathlib import Path
spec = importlib.util.spec_from_file_location("orca_pickle_trap", {source!r})
trap = importlib.util.module_from_spec(spec)
spec.loader.exec_module(trap)
trap.install(Path({folder!r}))
"""
TORCH = {
    "torch.serialization": ("load",),
    "torch.distributed.distributed_c10d": (
        "_object_to_tensor", "_tensor_to_object", "all_gather_object", "broadcast_object_list", "gather_object",
        "recv_object_list", "scatter_object_list", "send_object_list",
    ),
}  # fmt: skip


class PickleTrappedError(Exception):
    """A process tried to read a pickle."""


def environment(folder: Path) -> dict[str, str]:
    """Return variables for the processes to watch. `folder` must exist; it gets the module and the records."""
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE.format(source=__file__, folder=str(folder)))
    others = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": str(folder) if not others else f"{folder}{os.pathsep}{others}"}


def trapped(folder: Path) -> list[str]:
    """Return the call stack of every trapped call."""
    return [entry["stack"] for entry in _entries(folder / TRAPPED)]


def processes(folder: Path) -> list[list[str]]:
    """Return the original command line of every Python process that has installed the trap."""
    return [entry["command"] for entry in _entries(folder / PROCESSES)]


def install(folder: Path) -> None:
    """Set the trap in this process, before anything else is imported."""
    import _pickle
    import pickle

    def spring(name: str) -> NoReturn:
        stack = "".join(traceback.format_stack()[:-2])
        _append(folder / TRAPPED, {"call": name, "stack": f"{name}\n{stack}"})
        raise PickleTrappedError(f"{name} was called")

    def trap(name: str) -> Callable[..., NoReturn]:
        return lambda *_, **__: spring(name)

    class Unpickler(_pickle.Unpickler):
        """Modules may subclass it, but not read pickles."""

        load = trap("pickle.Unpickler.load")

    for module in (pickle, _pickle):
        module.loads, module.load = trap("pickle.loads"), trap("pickle.load")  # type: ignore[assignment]
        module.Unpickler = Unpickler  # type: ignore[misc]
    pickle._Unpickler.load = trap("pickle._Unpickler.load")  # type: ignore[attr-defined]
    pickle._loads, pickle._load = trap("pickle._loads"), trap("pickle._load")  # type: ignore[attr-defined]
    sys.meta_path.insert(0, _TorchFinder(trap))
    _append(folder / PROCESSES, {"command": sys.orig_argv})


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Installs the trap in torch's modules when they are imported."""

    def __init__(self, trap: Callable[[str], Any]) -> None:
        self._trap = trap

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in TORCH:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_trap(module: ModuleType) -> None:
                execute(module)
                for function in TORCH[name]:
                    assert hasattr(module, function), f"this torch has no {name}.{function}"
                    setattr(module, function, self._trap(f"{name}.{function}"))

            spec.loader.exec_module = execute_and_trap  # type: ignore[method-assign]
        return spec


def _append(path: Path, entry: dict[str, Any]) -> None:
    with path.open("a") as file:  # one write per line, so that lines of several processes do not mix
        file.write(json.dumps(entry) + "\n")


def _entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
