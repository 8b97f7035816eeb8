"""Checks in processes of their own: a failure is reported as what it was, a refusal, an overrun or a fault."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from orca_master.commands import preflight
from orca_master.commands.preflight import check, check_in_forks
from orca_master.errors import ConfigurationError

both = pytest.mark.parametrize("check_", [check, check_in_forks])


@both
def test_a_fault_of_the_check_is_no_overrun(check_):
    with pytest.raises(ConfigurationError, match="timeit failed with exit code 1: KeyError: 'ours'"):
        check_(["timeit", "-n1", "-r1", "pass"], ["timeit", "raise KeyError('ours')"])


@both
def test_a_process_that_was_ended_by_its_bounds(check_):
    with pytest.raises(ConfigurationError, match=r"took more than .* \(timeit was killed by signal 24\)"):
        check_(["timeit", "import os; os.kill(os.getpid(), 24)"])


@both
def test_a_refusal_is_its_last_line(check_, tmp_path):
    with pytest.raises(ConfigurationError, match=rf"^{tmp_path}/config.json: No such file or directory$"):
        check_(["orca_worker.model_check", str(tmp_path)])


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


def test_checks_in_forks_run_at_once_and_share_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "WALL_SECONDS", 60)
    os.mkfifo(pipe := tmp_path / "pipe")  # whose two ends wait for each other (open(2))
    check_in_forks(*(["timeit", "-n1", "-r1", f"open({str(pipe)!r}, {mode!r}).close()"] for mode in "rw"))
    monkeypatch.setattr(preflight, "WALL_SECONDS", 0.05)
    with pytest.raises(ConfigurationError, match="-n1: files were not read within 0 s"):
        check_in_forks(["timeit", "-n1", "-r1", "import time; time.sleep(60)"])


def test_a_fork_has_no_input_and_no_output_and_the_environment_of_a_check(capfd):
    looks = "import os, sys; sys.exit(repr((os.read(0, 1), os.write(1, b'lost'), os.environ['RUST_BACKTRACE'])))"
    with pytest.raises(ConfigurationError, match=r"exit code 1: .*\(b'', 4, '0'\)"):
        check_in_forks(["timeit", looks])
    assert capfd.readouterr().out == ""
