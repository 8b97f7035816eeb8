"""Runs schemathesis against a server and returns the result of each call."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HOOKS = Path(__file__).with_name("schemathesis_hooks.py")


@dataclass(frozen=True, slots=True)
class Call:
    """One call: "POST /v1/completions", True if its body follows the schema, and the status of the answer."""

    route: str
    follows_schema: bool
    status: int


def run_schemathesis(url: str, folder: Path, options: list[str], timeout: float) -> tuple[list[Call], str]:
    """Fuzz all routes in mixed mode; return the calls, and schemathesis' report ("" without findings).

    Raises subprocess.TimeoutExpired after `timeout` seconds. Files are written below `folder`.
    """
    calls = folder / "calls.txt"
    done = subprocess.run(
        [Path(sys.executable).parent / "schemathesis", "run", f"{url}/openapi.json", "--checks", "not_a_server_error",
         "--phases", "fuzzing", "--mode", "all", "--request-timeout", "60", "--workers", "1", *options],
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "CALLS": str(calls), "SCHEMATHESIS_HOOKS": str(HOOKS)},
        cwd=folder, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    lines = [line.rsplit(" ", 2) for line in calls.read_text().splitlines()] if calls.is_file() else []
    results = [Call(route, mode == "positive", int(status)) for route, mode, status in lines]
    return results, (done.stdout + done.stderr)[-4000:] if done.returncode else ""
