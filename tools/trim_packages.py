"""Removes files that an image does not need from an environment: tests, headers, and bytecode of unused modules.

usage: python trim_packages.py MODULE…

Run by the environment's own Python in a stage of the Dockerfile.
MODULE…: the modules that the image's commands import. The script imports them once to write their bytecode, because the
image's processes cannot write it and would compile the modules at every start. Other modules are compiled on import.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

UNUSED = (
    "kubernetes/aio",  # a second client, for asyncio
    "torch/include",  # headers for extensions that are compiled at run time
    "torch/test",  # torch's own tests
    "torch/bin/*[tT]est*",
    "torch/bin/protoc*",
    "torch/bin/*.p*t*",
    "torch/bin/upgrader_models",
    "torch/lib/lib*test.so",
)
"""Patterns below site-packages. `torch/bin/torch_shm_manager` is kept: `import torch` requires it."""


def trim(packages: Path) -> None:
    """Remove the paths of UNUSED, every package `tests`, and all bytecode from a site-packages folder."""
    unused = {path for pattern in UNUSED for path in packages.glob(pattern)}
    unused |= {init.parent for init in packages.rglob("tests/__init__.py")}
    unused |= set(packages.rglob("__pycache__"))
    for path in unused:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # its folder may have been removed already


def main(modules: Sequence[str]) -> int:
    """Trim the environment and import the modules; return the exit code of the imports."""
    trim(Path(sysconfig.get_path("purelib")))
    command = [sys.executable, "-c", "".join(f"import {module}\n" for module in modules)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
