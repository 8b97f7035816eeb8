"""Virtual environments of the peers, created on first use from the metadata at the head of a peer's file (PEP 723).

Beside `dependencies` the metadata has `without` (dependencies of dependencies that are left out, because they would
replace the CPU build of torch), `torch` (false: not installed), `from_source` (packages that are built on this machine,
with the variables of `build`) and `debian` (packages whose libraries are unpacked into the environment).
"""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
ENVIRONMENTS = ROOT / "build" / "peers"
TORCH = "torch==2.13.0"
REQUIRED = """
import importlib.metadata, json, sys
print(json.dumps([entry for name in sys.argv[1:] for entry in importlib.metadata.requires(name) or []]))
"""


class EnvironmentFailed(Exception):
    """An environment cannot be made here; the message is one line."""


def environment_of(name: str, revision: str | None = None, folder: Path = ENVIRONMENTS) -> Path:
    """Return the Python interpreter of a peer's environment; create the environment if it does not exist.

    ORCA itself is reinstalled each time, because its files may have changed: from the working tree, or from a commit.
    Raises EnvironmentFailed with the last line of the command that failed.
    """
    metadata = _metadata(name)
    home = folder / (f"{name}-{revision}" if revision else name)
    python, done, source = home / "bin" / "python", home / "installed", home / "source"
    requirements = [
        entry.format(repository=(source if revision else ROOT).as_uri()) for entry in metadata["dependencies"]
    ]
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    stated = json.dumps(metadata)
    if done.exists() and done.read_text(encoding="utf-8") == stated:
        if requirements != metadata["dependencies"]:
            _run([*pip, "--no-deps", "--force-reinstall", *requirements])
        return python
    print(f"creating the environment of {home.name}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(home)])
    torch = [TORCH] if metadata.get("torch", True) else []
    if torch:
        _run([*pip, *torch])
    if revision:
        _run(["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(source)])
        _run(["git", "-C", str(source), "checkout", "--quiet", "--detach", revision])
    if without := metadata.get("without"):
        requirements = _without(pip, python, requirements, without)
    built = [option for package in metadata.get("from_source", []) for option in ("--no-binary", package)]
    built += ["--no-cache-dir"] if built else []  # a cached build may be for another processor
    _run([*pip, *built, *torch, *requirements], metadata.get("build", {}))
    for package in metadata.get("debian", []):
        _unpack(package, home / "debian")
    done.write_text(stated, encoding="utf-8")
    return python


def library(python: Path, name: str) -> str:
    """Return the path of a library for LD_PRELOAD: of the environment, else of the system. Raises EnvironmentFailed."""
    home = python.parents[1]
    for place in (home / "lib", home / "debian"):
        for path in sorted(place.rglob(f"{name}*")):
            return str(path.resolve())
    stem = name.removeprefix("lib").partition(".so")[0]
    if found := ctypes.util.find_library(stem):
        return found
    raise EnvironmentFailed(f"no library {name} in {home} or on this system")


def _metadata(name: str) -> dict[str, Any]:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    block = re.search(r"^# /// script\n(.*?)^# ///$", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    return tomllib.loads(re.sub(r"^# ?", "", block[1], flags=re.MULTILINE))


def _without(pip: list[str], python: Path, requirements: list[str], excluded: Iterable[str]) -> list[str]:
    """Install packages without dependencies; return these, except those that would replace the CPU build of torch."""
    _run([*pip, "--no-deps", *requirements])
    names = [re.split(r"[=<>@ ]", entry)[0] for entry in requirements]
    printed = _run([str(python), "-c", REQUIRED, *names])
    skipped = re.compile(rf"(torch|setuptools|{'|'.join(excluded)})\b(?!-)")
    return [entry for entry in json.loads(printed) if "extra ==" not in entry and not skipped.match(entry)]


def _unpack(package: str, folder: Path) -> None:
    """Unpack a Debian package without installing it. Not a failure where it cannot be had: see `library`."""
    folder.mkdir(exist_ok=True)
    try:
        _run(["apt-get", "download", "--quiet", package], folder=folder)
        for archive in folder.glob(f"{package}_*.deb"):
            _run(["dpkg-deb", "--extract", str(archive), str(folder)])
    except (EnvironmentFailed, FileNotFoundError) as error:
        print(f"{package} of Debian was not unpacked: {error}", flush=True)


def _run(command: list[str], variables: dict[str, str] | None = None, folder: Path | None = None) -> str:
    """Run a command; return its output. Raises EnvironmentFailed with its last error, else its last line."""
    result = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, **(variables or {})}, cwd=folder
    )
    if result.returncode:
        lines = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()
        raise EnvironmentFailed(next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1]).strip())
    return result.stdout
