"""`LocalWorkers`, `MasterProcess` and `run_beside`: restarts with a growing wait, signals, exit codes of the master."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest
from orca_master.commands import local_workers
from orca_master.commands.local_workers import BACK_OFF_SECONDS, STABLE_SECONDS, LocalWorkers
from orca_master.errors import ConfigurationError
from orca_master.heartbeat import FIRST_SECONDS, SILENT_SECONDS
from orca_protos.process_state import is_stopped
from support.served import eventually

PARENT = """
import os, signal, time
from orca_master.commands.child_process import fork
from orca_master.commands.local_workers import LocalWorkers
from orca_master.commands.ports import SIGNALS
from orca_master import heartbeat
from orca_master.commands import serve_parent

serve_parent.BACK_OFF_SECONDS = [0.0] * 5

def run(restarted, parent):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    print(os.getpid(), flush=True)
    {body}

starts = 0

def start(restarted, parent):
    global starts
    starts += 1
    return fork(lambda: run(restarted, parent))

signal.pthread_sigmask(signal.SIG_BLOCK, (*SIGNALS, signal.SIGCHLD))
with LocalWorkers(0) as workers:
    master = serve_parent.MasterProcess(start)
    code = serve_parent.run_beside(master, workers, lambda: print("closed", flush=True))
print("code", code)
"""


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(local_workers, "time", made)
    return made


@pytest.fixture
def workers(clock, monkeypatch):
    """One worker, a process that ends at once."""

    def start(_, address: str, heartbeat: int) -> subprocess.Popen[bytes]:
        assert address.endswith("worker-0.sock")
        process = subprocess.Popen(["true"])
        process.wait(60)
        return process

    monkeypatch.setattr(LocalWorkers, "_start", start)
    with LocalWorkers(1) as made:
        yield made


def test_a_worker_that_ends_again_and_again_is_restarted_after_growing_waits(workers, clock):
    process = workers._workers[0].process
    waits = []
    for _ in range(len(BACK_OFF_SECONDS) + 2):
        waits.append(workers.restart_ended() or 0.0)
        if waits[-1]:
            assert workers._workers[0].process is process, "restarted too early"
            clock.now += waits[-1]
            assert workers.restart_ended() is None
        assert workers._workers[0].process is not process
        process = workers._workers[0].process
    assert waits == [*BACK_OFF_SECONDS, BACK_OFF_SECONDS[-1], BACK_OFF_SECONDS[-1]]


def test_a_restart_that_the_system_refuses_is_tried_again(workers, clock, monkeypatch, caplog):
    refused = mock.Mock(side_effect=OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
    process = workers._workers[0].process
    with monkeypatch.context() as patch:
        patch.setattr(workers, "_start", refused)
        assert workers.restart_ended() == BACK_OFF_SECONDS[-1]
    assert "worker 0 was not started: Resource temporarily unavailable" in caplog.text
    clock.now += BACK_OFF_SECONDS[-1]
    assert workers.restart_ended() is None
    assert workers._workers[0].process is not process


def test_after_a_stable_time_a_worker_is_restarted_at_once(workers, clock):
    assert workers.restart_ended() is None
    clock.now += STABLE_SECONDS
    process = workers._workers[0].process
    assert workers.restart_ended() is None
    assert workers._workers[0].process is not process


SILENCE = "import time; time.sleep(600)"
BEAT = "import os, sys, time\nos.write(int(sys.argv[1]), b'.')\ntime.sleep(600)"


@pytest.mark.parametrize(("program", "seconds"), [(BEAT, SILENT_SECONDS), (SILENCE, FIRST_SECONDS)])
def test_a_worker_without_signs_of_life_is_killed_and_restarted(clock, monkeypatch, program, seconds):
    """Also one that never gave any; if this process was suspended, the wait begins anew."""

    def start(_, address: str, heartbeat: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", program, str(heartbeat)], pass_fds=(heartbeat,))

    def check_for(seconds: float) -> None:
        for _ in range(int(seconds)):
            clock.now += 1.0
            workers.end_silent()

    monkeypatch.setattr(LocalWorkers, "_start", start)
    before = sorted(os.listdir("/proc/self/fd"))
    with LocalWorkers(1) as workers:
        process, heartbeat = workers._workers[0].process, workers._workers[0].heartbeat
        pid = process.pid
        assert not heartbeat.is_silent(clock.now, pid)
        assert eventually(lambda: not heartbeat.is_silent(clock.now, pid) and heartbeat._beaten == (program is BEAT))
        check_for(seconds - 1)
        clock.now += 3600
        check_for(seconds)
        assert process.poll() is None
        check_for(2)
        assert process.poll() == -signal.SIGKILL
        assert workers.restart_ended() is None
        assert workers._workers[0].process is not process
        monkeypatch.setattr(local_workers, "EXIT_SECONDS", 0.1)
        monkeypatch.setattr(local_workers, "time", time)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_worker_that_is_stopped_while_it_starts_is_not_waited_for_as_one_that_starts(clock, monkeypatch):
    def start(_, address: str, heartbeat: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", SILENCE], pass_fds=(heartbeat,))

    monkeypatch.setattr(LocalWorkers, "_start", start)
    with LocalWorkers(1) as workers:
        process = workers._workers[0].process
        for signalled, seconds in ((signal.SIGSTOP, 5), (signal.SIGCONT, 20), (signal.SIGSTOP, int(SILENT_SECONDS))):
            process.send_signal(signalled)
            assert eventually(lambda: is_stopped(process.pid) == (signalled is signal.SIGSTOP))  # noqa: B023
            for _ in range(seconds):
                clock.now += 1.0
                workers.end_silent()
                assert process.poll() is None
        clock.now += 1.0
        workers.end_silent()
        assert process.poll() == -signal.SIGKILL
        monkeypatch.setattr(local_workers, "EXIT_SECONDS", 0.1)
        monkeypatch.setattr(local_workers, "time", time)


@pytest.mark.parametrize(
    ("folder", "words"), [("a" * 100, "is too long: the path of a Unix socket has at most 107 bytes"), ("none", "none")]
)
def test_a_folder_for_temporary_files_that_cannot_have_sockets(tmp_path, monkeypatch, folder, words):
    (tmp_path / ("a" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / folder))
    with pytest.raises(ConfigurationError, match=rf"TMPDIR: .*{words}"):
        LocalWorkers(1)
    assert not list((tmp_path / ("a" * 100)).iterdir())


def test_the_folder_of_the_sockets_is_removed():
    with LocalWorkers(0) as workers:
        folder = Path(workers._folder.name)
        assert folder.is_dir()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("body", "number", "ends_with", "num_starts"),
    [
        ("return 5", None, "code 5", 1),
        ("time.sleep(60)", signal.SIGTERM, "code 7", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", None, "code -9", 6),
        ("raise ValueError('odd')", None, "code 1", 1),
        ("return 5 if restarted else os.kill(os.getpid(), signal.SIGKILL)", None, "code 5", 2),
        ("return 1 if restarted else os.kill(os.getpid(), signal.SIGKILL)", None, "code 1", 2),
        ("parent.note_ready(); os.kill(os.getpid(), signal.SIGKILL)", None, "code -9", 6),
        (
            "parent.note_ready(); time.sleep(0.02); starts < 12 and os.kill(os.getpid(), signal.SIGKILL); os._exit(7)",
            None,
            "code 7",
            12,
        ),
        ("return 5 if restarted else os.kill(os.getpid(), signal.SIGSTOP)", None, "code 5", 2),
    ],
    ids=[
        "ends",
        "signal",
        "killed",
        "raises",
        "killed once",
        "fails again",
        "killed at once",
        "killed later",
        "stopped",
    ],
)
def test_the_parent_restarts_the_master_passes_signals_on_and_returns_the_code(
    tmp_path, body, number, ends_with, num_starts
):
    script = PARENT.format(body=body)
    if "sleep(0.02)" in body:
        script = script.replace("starts = 0", "starts = 0; serve_parent.STABLE_SECONDS = 0.01")
    if "SIGSTOP" in body:
        script = script.replace("starts = 0", "starts = 0; heartbeat.FIRST_SECONDS = 2.0")
    # A file, because `communicate` loses what `readline` has read from a pipe beyond its line.
    printed, errors = tmp_path / "stdout", tmp_path / "stderr"
    with (
        printed.open("w") as stdout,
        errors.open("w") as stderr,
        subprocess.Popen([sys.executable, "-c", script], stdout=stdout, stderr=stderr) as process,
    ):
        if number is not None:
            assert eventually(lambda: printed.read_text().endswith("\n"))
            process.send_signal(number)
        process.wait(60)
    *lines, last = printed.read_text().splitlines()
    assert last == ends_with
    masters = [line for line in lines if line != "closed"]
    assert len(set(masters)) == len(masters) == num_starts
    assert str(process.pid) not in masters
    assert ("the master gives no sign of life and is killed" in errors.read_text()) == ("SIGSTOP" in body)
    assert ("closed" in lines) == (number is not None)
    assert ("ValueError: odd" in errors.read_text()) == ("odd" in body)


def test_a_parent_that_was_stopped_goes_on():
    """For longer than the interval of its checks."""
    script = PARENT.format(body="time.sleep(60)").replace("\ndef run(", "\nserve_parent.CHECK_SECONDS = 0.05\ndef run(")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(3):
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.2)  # longer than the parent's timer: nothing can be observed of a stopped process
            process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert output.splitlines()[-1] == "code 7"


def test_the_master_ends_with_its_parent():
    command = [sys.executable, "-c", PARENT.format(body="time.sleep(60)")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        master = int(process.stdout.readline())
        process.kill()
        process.wait(60)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{master}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{master}").exists()


def test_each_worker_has_its_own_options_also_after_a_restart_and_a_kill_ends_it(monkeypatch, clock):
    def note(command: list[str], **_: object) -> subprocess.Popen[bytes]:
        commands.append(command)
        return start([sys.executable, "-c", SILENCE])

    commands: list[list[str]] = []
    start = subprocess.Popen
    monkeypatch.setattr(local_workers.subprocess, "Popen", note)
    with LocalWorkers(2, ["--all"], lambda index: ["--own", str(index)]) as workers:
        workers.kill()
        for worker in workers._workers:
            assert worker.process.wait(60) == -signal.SIGKILL
        workers.restart_ended()
        workers.kill()
        monkeypatch.setattr(local_workers, "time", time)
    assert [command[-3:] for command in commands] == [["--all", "--own", number] for number in "0101"]
