"""The lock files of the images are what a new resolution from the public registry gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "tools" / "lock_images.py"


def test_locks_are_up_to_date(environment):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
