"""Writes the lock files of the images, images/*.txt: packages with versions and hashes.

    python tools/lock_images.py [--check]

Versions are those of constraints.txt. uv resolves from the public registry only. torch and the packages that only its
CUDA build needs are in images/cuda.txt, because the image for CPUs has a build of torch from another index
(tools/install_torch.py). `--check` writes nothing; exit code 1 if the versions of a lock file differ.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "images"
INIT = "dumb-init"
BUILD_TOOLS = ("pip", "cyclonedx-bom")
"""Tools beside the build system of pyproject.toml: the installer of the packages, and the writer of the SBOM."""
EXTRAS = {
    "operator": ("operator",),
    "master": ("base", "hub", "s3", "traces"),
    "worker": ("base", "hub", "s3", "traces", "worker"),
}
"""Requirements of each image: `base` or an extra of pyproject.toml."""
CUDA = re.compile(r"torch|triton|cupy-|nvidia-|cuda-")
"""Names of the packages in cuda.txt."""
TIMEOUT_SECONDS = 600.0
"""Limit for resolving one lock file."""
HEAD = "# Written by `make lock` (tools/lock_images.py). Do not edit.\n"


def requirements() -> dict[str, list[str]]:
    """Return the requirements of every lock file, by its name without `.txt`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lists = {"base": project["project"]["dependencies"]} | project["project"]["optional-dependencies"]
    needed = {image: [INIT, *(line for name in names for line in lists[name])] for image, names in EXTRAS.items()}
    needed["cuda"] = [*needed["worker"], *lists["cuda"]]
    needed["build"] = [*project["build-system"]["requires"], *BUILD_TOOLS]
    return needed


def lock(lines: Sequence[str], present: str) -> str:
    """Return uv's resolution with hashes; raise CalledProcessError or TimeoutExpired if uv fails.

    Versions that constraints.txt does not fix are taken from `present`, the existing lock file.
    """
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config", "--no-annotate", "--no-header"]
    command += ["--constraint", str(ROOT / "constraints.txt"), "--generate-hashes", "--only-binary", ":all:"]
    command += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_34", "-"]
    with tempfile.NamedTemporaryFile("w+", encoding="utf-8", suffix=".txt") as output:
        output.write(present)
        output.flush()
        command += ["--output-file", output.name]
        subprocess.run(
            command, input="\n".join(lines), capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS
        )
        return Path(output.name).read_text(encoding="utf-8")


def entries(text: str) -> dict[str, str]:
    """Return package name → entry (version and hashes) of a lock file."""
    matches = re.findall(r"^([A-Za-z0-9_.-]+)==((?:.*\\\n)*.*\n)", text, re.MULTILINE)
    return {name: f"{name}=={rest}" for name, rest in matches}


def _stored(path: Path) -> str:
    """Return the existing lock file, "" if there is none."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def locks() -> dict[str, str]:
    """Return the content of every lock file, by its name without `.txt`."""
    contents = {}
    for name, lines in requirements().items():
        path = FOLDER / f"{name}.txt"
        resolved = entries(lock(lines, _stored(path)))
        chosen = {
            package: entry for package, entry in resolved.items() if bool(CUDA.match(package)) is (name == "cuda")
        }
        contents[name] = HEAD + "".join(chosen.values())
    return contents


def versions(text: str) -> set[str]:
    """Return `name==version` of every entry."""
    return {entry.split()[0] for entry in entries(text).values()}


def main(argv: Sequence[str]) -> int:
    """Write or check the lock files; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare versions, write nothing")
    arguments = parser.parse_args(argv)
    try:
        contents = locks()
    except subprocess.CalledProcessError as error:
        print(f"lock_images: {error.stderr.strip()}", file=sys.stderr)
        return 1
    except subprocess.TimeoutExpired:
        print(f"lock_images: uv did not finish within {TIMEOUT_SECONDS:.0f} s", file=sys.stderr)
        return 1
    differs = False
    for name, text in contents.items():
        path = FOLDER / f"{name}.txt"
        if not arguments.check:
            path.write_text(text, encoding="utf-8")
        elif difference := versions(text) ^ versions(_stored(path)):
            print(f"{path.relative_to(ROOT)}: {', '.join(sorted(difference))}: run `make lock`", file=sys.stderr)
            differs = True
    return int(differs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
