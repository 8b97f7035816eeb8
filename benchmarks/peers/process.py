"""The process of a peer on its cores, and the end of a process with all its children."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent
EXIT_SECONDS = 20.0


class Peer:
    """A loaded peer; raises RuntimeError with the last line of its log when it ends.

    `preload`: paths of libraries that the peer's process and its children preload (ld.so(8)).
    """

    def __init__(
        self, name: str, engine: str, python: Path, job: Path, cores: set[int], preload: Iterable[str] = ()
    ) -> None:
        self.name = name
        # PYTHONPATH would replace the packages of the peer's own environment, as those of an earlier revision.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment = {**inherited, "OMP_NUM_THREADS": str(len(cores)), "HF_HUB_OFFLINE": "1"}
        if libraries := ":".join(preload):
            environment["LD_PRELOAD"] = libraries
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  lives as long as the peer
        self._process = subprocess.Popen(
            [
                "taskset",
                "--cpu-list",
                ",".join(map(str, sorted(cores))),
                str(python),
                str(FOLDER / f"{engine}.py"),
                str(job),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            self._expect("ready")
        except BaseException:
            self.close()
            raise

    def run(self) -> float:
        """Run the job once; return the seconds."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `_expect` says why the peer has ended
            self._process.stdin.write("run\n")
            self._process.stdin.flush()
        return float(json.loads(self._expect("seconds"))["seconds"])

    def close(self) -> None:
        """End the process and its children."""
        end_session(self._process)

    def _expect(self, word: str) -> str:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            if word in text:
                return text
        self._log.seek(0)
        raise RuntimeError((self._log.read().strip().splitlines() or ["ended"])[-1])


def end_session(process: subprocess.Popen[str]) -> None:
    """End a session leader and its children, because vLLM's child processes outlive their parent."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_SECONDS)
