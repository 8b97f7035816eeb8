"""Checks in processes of their own: a failure is reported as what it was, a refusal, an overrun or a fault."""

from __future__ import annotations

import io
import subprocess
import sys
from types import SimpleNamespace

import pytest
from orca_master.commands import preflight
from orca_master.commands.preflight import check, checking
from orca_master.errors import ConfigurationError


def test_a_fault_of_the_check_is_no_overrun():
    with pytest.raises(ConfigurationError, match="timeit failed with exit code 1: KeyError: 'ours'"):
        check(["timeit", "raise KeyError('ours')"])


def test_a_process_that_was_ended_by_its_bounds():
    with pytest.raises(ConfigurationError, match=r"took more than .* \(timeit was killed by signal 24\)"):
        check(["timeit", "import os; os.kill(os.getpid(), 24)"])


def test_the_text_check_reports_any_exception_in_one_line():
    program = (
        "import sys\nfrom orca_master.commands import text_check\n"
        "def fail(*_): raise LookupError('two\\nlines')\n"
        "text_check.try_text = fail\nsys.exit(text_check.main(['model']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, "LookupError: two lines\n")


def test_all_checks_share_one_bound(monkeypatch):
    now, timeouts = [1000.0], []

    class Slow:
        """A check that takes 50 s."""

        returncode = 0
        stderr = io.StringIO()

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def communicate(self, timeout: float) -> tuple[str, str]:
            timeouts.append(timeout)
            now[0] += 50
            return "", ""

        def kill(self) -> None:
            pass

        wait = kill

    monkeypatch.setattr(preflight.subprocess, "Popen", Slow)
    monkeypatch.setattr(preflight, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(preflight, "WALL_SECONDS", 120.0)
    check(["a", "model"], ["b", "model"], ["c", "model"], ["d", "model"])
    assert timeouts == [120, 70, 20, 0]


def test_links_in_a_circle_are_refused_by_the_option(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ConfigurationError, match=r"^--chat-template \S+/a: "):
        check(["orca_master.commands.text_check", str(tmp_path), "--chat-template", str(tmp_path / "a")])


def test_checks_run_beside_the_block(tmp_path):
    go = tmp_path / "go"
    program = (
        f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\nraise KeyError('ours')"
    )
    with pytest.raises(ConfigurationError, match="ours"), checking(["timeit", program]):
        go.touch()


def test_checks_are_killed_if_the_block_fails():
    with pytest.raises(SystemExit), checking(["timeit", "import time; time.sleep(600)"]):
        sys.exit(2)
