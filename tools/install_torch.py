"""Chooses a build of torch, prints its source and its size, and installs the build without dependencies.

`make run` and the Dockerfile call this script before they install ORCA. The installation of ORCA then keeps this torch
and adds torch's dependencies. The order of choice for CPUs:

1. the index given by `--index`, and no other source;
2. the CPU build that pip's own configuration offers (an index or a folder of find-links);
3. the CPU build of PyTorch's index, if the index answers within 5 s;
4. the build of pip's default index: on Linux it brings several GB of CUDA packages.

For CUDA, the order is 1 and 4. The script needs only Python's standard library and pip 25.1 or newer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's documented index of builds without CUDA."""
PATIENCE = 5.0
"""Timeout of PyTorch's index in seconds."""
CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


class InstallError(Exception):
    """No build of torch can be installed; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Build:
    """A wheel of torch and its dependencies, as resolved by one run of pip."""

    version: str
    urls: tuple[str, ...]
    """torch first. `file://` for wheels in a folder. Does not include the small dependencies of a CPU build."""
    has_cuda: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """A build, its source for pip, and the reason of the choice."""

    build: Build
    requirement: str
    index: str | None
    """The only index to install torch from; None: the sources of pip's configuration."""
    reason: str


class Pip:
    """pip for one Python environment. Methods raise InstallError with pip's error message."""

    def __init__(self, python: str = sys.executable, constraints: Path = CONSTRAINTS) -> None:
        self._command = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install"]
        self._constraints = constraints

    def find(self, requirement: str, index: str | None = None) -> Build | None:
        """Return the build that pip would install, with its CUDA packages; None if torch is installed already.

        Reads metadata only: `fast-deps` lets pip read it out of remote wheels.
        """
        wheels = self._resolve([requirement], index, "--no-deps")
        if not wheels:
            return None
        metadata = wheels[0]["metadata"]
        required = [line for line in metadata.get("requires_dist", []) if "extra ==" not in line]
        urls = [wheels[0]["download_info"]["url"]]
        has_cuda = False
        if any(_is_cuda(line) for line in required):
            dependencies = self._resolve(required, None, "--ignore-installed")
            has_cuda = any(_is_cuda(wheel["metadata"]["name"]) for wheel in dependencies)
            urls += [wheel["download_info"]["url"] for wheel in dependencies]
        return Build(metadata["version"], tuple(urls), has_cuda)

    def install(self, choice: Choice) -> None:
        """Install torch without dependencies; pip shows its progress."""
        with _sources(choice.index) as environment:
            command = self._install([choice.requirement], "--no-deps")
            if subprocess.run(command, env=environment, check=False).returncode:
                raise InstallError(f"pip could not install {choice.requirement}")

    def _install(self, requirements: Sequence[str], *options: str) -> list[str]:
        return [*self._command, "--constraint", str(self._constraints), *options, *requirements]

    def _resolve(self, requirements: Sequence[str], index: str | None, *options: str) -> list[dict[str, Any]]:
        dry = ["--quiet", "--dry-run", "--report", "-", "--use-feature", "fast-deps", "--only-binary", ":all:"]
        with _sources(index) as environment:
            command = self._install(requirements, *dry, *options)
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InstallError(f"pip finds no versions for {' '.join(requirements)}:\n{done.stderr.strip()}")
        wheels: list[dict[str, Any]] = json.loads(done.stdout)["install"]
        return wheels


@contextmanager
def _sources(index: str | None) -> Iterator[dict[str, str]]:
    """Yield an environment for pip in which `index`, if given, is the only source of packages."""
    if index is None:
        yield dict(os.environ)
        return
    with tempfile.TemporaryDirectory() as empty:  # an empty variable would not override find-links of a file
        only = {"PIP_INDEX_URL": index, "PIP_EXTRA_INDEX_URL": index, "PIP_FIND_LINKS": empty}
        yield dict(os.environ) | only


def _is_cuda(requirement: str) -> bool:
    return requirement.startswith(("nvidia-", "cuda-"))


def choose(
    pip: Pip,
    requirement: str,
    device: str,
    index: str | None,
    cpu_index: str = CPU_INDEX,
    patience: float = PATIENCE,
) -> Choice | None:
    """Return the build to install for `device` ("cpu" or "cuda"), None if torch is installed already.

    Raises InstallError if there is no build, or no build with CUDA for device "cuda".
    """
    if index:
        build = pip.find(requirement, index)
        return None if build is None else Choice(build, requirement, index, "chosen by TORCH_INDEX")
    known = pip.find(requirement)
    if known is None:
        return None
    if device == "cuda":
        return _with_cuda(pip, requirement, known)
    if not known.has_cuda:
        return Choice(known, requirement, None, "known to pip")
    if not answers(cpu_index, patience):
        reason = f"PyTorch's CPU index did not answer within {patience:g} s"
    else:
        try:
            build = pip.find(requirement, cpu_index)
            return None if build is None else Choice(build, requirement, cpu_index, "PyTorch's CPU index")
        except InstallError:
            reason = "PyTorch's CPU index has no torch for this Python"
    return Choice(known, requirement, None, f"{reason}; TORCH_INDEX=URL names another index")


def _with_cuda(pip: Pip, requirement: str, known: Build) -> Choice:
    if known.has_cuda:
        return Choice(known, requirement, None, "known to pip")
    # pip prefers local versions such as 2.13.0+cpu; `===` excludes them.
    exactly = "torch===" + known.version.partition("+")[0]
    build = pip.find(exactly)
    if build is None or not build.has_cuda:
        raise InstallError("pip's configuration offers no torch with CUDA: name an index with TORCH_INDEX=URL")
    return Choice(build, exactly, None, "known to pip")


def answers(index: str, seconds: float) -> bool:
    """Return whether an index serves its page of torch within `seconds`.

    Proxies and certificates come from the environment, as in urllib. A thread limits the whole request: a socket's
    timeout applies to name resolution and to each address of the host separately.
    """
    served = threading.Event()

    def request() -> None:
        try:
            with urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=seconds):
                served.set()
        except (OSError, ValueError):
            pass

    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(seconds)
    return served.is_set()


def size(url: str) -> int | None:
    """Return the size of a wheel in bytes, None if the server does not report it."""
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            return Path(unquote(parts.path)).stat().st_size
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PATIENCE) as response:
            return int(response.headers["Content-Length"])
    except (OSError, ValueError, TypeError):
        return None


def describe(choice: Choice) -> str:
    """Return the line for the user: version, build, megabytes, source, reason."""
    build = choice.build
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(size, build.urls))
    known = sum(bytes_ for bytes_ in sizes if bytes_ is not None)
    amount = (
        f"{known / 1e6:,.0f} MB"
        if None not in sizes
        else f"at least {known / 1e6:,.0f} MB"
        if known
        else "size unknown"
    )
    kind = f"with CUDA ({len(build.urls)} wheels)" if build.has_cuda else "CPU build"
    parts = urlsplit(build.urls[0])
    source = str(Path(unquote(parts.path)).parent) if parts.scheme == "file" else parts.hostname
    return f"torch {build.version}, {kind}: {amount} from {source} ({choice.reason})"


def has_nvidia_driver() -> bool:
    """Return whether this machine has a driver for NVIDIA GPUs."""
    return Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None


def torch_requirement(constraints: Path = CONSTRAINTS) -> str:
    """Return the line of torch in constraints.txt, such as `torch==2.13.0`."""
    (line,) = re.findall(r"^torch==.+$", constraints.read_text(encoding="utf-8"), re.MULTILINE)
    return str(line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Choose and install torch; return the exit code."""
    parser = argparse.ArgumentParser(description="Choose, announce and install a build of torch.")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environment to install into")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is an NVIDIA driver")
    parser.add_argument("--index", help="the only index to take torch from")
    options = parser.parse_args(arguments)
    pip, requirement = Pip(options.python), torch_requirement()
    try:
        if options.device is None and has_nvidia_driver():
            try:
                choice = choose(pip, requirement, "cuda", options.index)
            except InstallError:
                choice = choose(pip, requirement, "cpu", options.index)
        else:
            choice = choose(pip, requirement, options.device or "cpu", options.index)
        if choice is None:
            print("torch is installed already")
            return 0
        print(describe(choice), flush=True)
        pip.install(choice)
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
