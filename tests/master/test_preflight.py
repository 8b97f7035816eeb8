"""Checks in processes of their own: a failure is reported as what it was, a refusal, an overrun or a fault."""

from __future__ import annotations

import subprocess
import sys

import pytest
from orca_master.errors import ConfigurationError
from orca_master.preflight import check


def test_a_fault_of_the_check_is_no_overrun():
    with pytest.raises(ConfigurationError, match="timeit failed with exit code 1: KeyError: 'ours'"):
        check(["timeit", "raise KeyError('ours')"])


def test_a_process_that_was_ended_by_its_bounds():
    with pytest.raises(ConfigurationError, match=r"took more than .* \(timeit by signal 24\)"):
        check(["timeit", "import os; os.kill(os.getpid(), 24)"])


def test_the_text_check_reports_any_exception_in_one_line():
    program = (
        "import sys\nfrom orca_master import text_check\n"
        "def fail(*_): raise LookupError('two\\nlines')\n"
        "text_check.try_text = fail\nsys.exit(text_check.main(['model']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, "LookupError: two lines\n")


def test_links_in_a_circle_are_refused_by_the_option(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ConfigurationError, match=r"^--chat-template \S+/a: "):
        check(["orca_master.text_check", str(tmp_path), "--chat-template", str(tmp_path / "a")])
