"""Removes from an environment what an image does not need: tests, headers, and bytecode of modules that nobody imports.

usage: python trim_packages.py MODULE…

Run with the environment's own Python in a stage of the Dockerfile.
The modules are what the image's commands import. They are imported once, so that their bytecode lies beside them: the
image's processes cannot write it, and without it every start would compile them anew. Other modules are compiled when a
process imports them.
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
    "kubernetes/aio",  # the client a second time, for asyncio
    "torch/include",  # headers, for extensions that are compiled at run time
    "torch/test",  # programs and files of torch's own tests
    "torch/bin/*[tT]est*",
    "torch/bin/protoc*",
    "torch/bin/*.p*t*",
    "torch/bin/upgrader_models",
    "torch/lib/lib*test.so",
)
"""Patterns below site-packages. `torch/bin/torch_shm_manager` stays: torch looks for it when it is imported."""


def trim(packages: Path) -> None:
    """Remove from a folder site-packages what UNUSED names, every package `tests`, and all bytecode."""
    unused = {path for pattern in UNUSED for path in packages.glob(pattern)}
    unused |= {init.parent for init in packages.rglob("tests/__init__.py")}
    unused |= set(packages.rglob("__pycache__"))
    for path in unused:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # a folder removed before may have held it


def main(modules: Sequence[str]) -> int:
    """Return the exit code; an import that fails shows its traceback."""
    trim(Path(sysconfig.get_path("purelib")))
    command = [sys.executable, "-c", "".join(f"import {module}\n" for module in modules)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
