"""Two workers and a master, started separately on TCP like pods, with or without certificates."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx

from support.engines import WORKER_COMMAND

NAME = "qwen2-gqa-tied"
TOKEN = "a secret"
BODY = {"prompt": [3, 4, 5], "max_tokens": 300, "temperature": 0.8, "seed": 1, "ignore_eos": True,
        "return_token_ids": True}  # fmt: skip


def free_ports(count: int) -> list[int]:
    """Return distinct ports chosen by the kernel; another process may take one before its use."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


class Cluster:
    """Two workers and a master like pods: started separately, with probe ports and an admin port.

    `tls`: a folder of certificates for all processes; None: --insecure.
    """

    def __init__(self, checkpoint: Path, folder: Path, tls: Path | None = None) -> None:
        self.security = ["--tls-dir", str(tls)] if tls else ["--insecure"]
        self.checkpoint = checkpoint
        self.folder = folder
        self.ports = free_ports(4)
        self.probes = free_ports(4)
        self.api, self.master_probe, self.admin = free_ports(3)
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        (folder / "token").write_text(TOKEN)
        self.topology = self.make_topology(1)
        (folder / "topology.json").write_text(json.dumps(self.topology))
        self.master: subprocess.Popen[str] | None = None
        self.log: list[str] = []

    def make_topology(self, pipelines: int) -> dict:
        addresses = [f"127.0.0.1:{port}" for port in self.ports]
        return {
            "model": {"path": str(self.checkpoint), "servedName": NAME, "dtype": "float32", "maxModelLen": None},
            "pipelineParallelSize": 2,
            "tensorParallelSize": 1,
            "communication": {"backend": "gloo", "socketInterface": "lo", "env": {}},
            "pipelines": [
                {"id": f"abc-{index}", "workers": addresses[2 * index : 2 * index + 2], "state": "active"}
                for index in range(pipelines)
            ],
        }

    def start_worker(self, index: int) -> None:
        self.workers[index] = subprocess.Popen(
            [
                *WORKER_COMMAND,
                "--listen",
                f"127.0.0.1:{self.ports[index]}",
                "--probe-port",
                str(self.probes[index]),
                "--drain-timeout",
                "60",
                *self.security,
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def start_master(self, *options: str) -> None:
        self.master = subprocess.Popen(
            [sys.executable, "-m", "orca_master.cli", "master", "--topology", str(self.folder / "topology.json"),
             "--port", str(self.api), "--probe-port", str(self.master_probe), "--admin-port", str(self.admin),
             "--admin-token-file", str(self.folder / "token"), "--recovery-timeout", "60", *self.security,
             *options],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.master is not None
        assert self.master.stderr is not None
        self.log += self.master.stderr

    def call(self, method: str, path: str, token: str = TOKEN, **arguments) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.request(method, f"http://127.0.0.1:{self.admin}{path}", headers=headers, timeout=30, **arguments)

    def state(self) -> dict:
        return self.call("GET", "/state").json()

    def serving(self) -> list[str]:
        return [pipeline["id"] for pipeline in self.state()["pipelines"] if pipeline["phase"] == "Serving"]

    def probe(self, port: int, path: str) -> int:
        try:
            return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=10).status_code
        except httpx.ConnectError:
            return 0

    def ask(self, **changes) -> list[int]:
        answer = httpx.post(f"http://127.0.0.1:{self.api}/v1/completions", json={**BODY, **changes}, timeout=100)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["token_ids"]

    def stop(self) -> None:
        for process in [*self.workers.values(), self.master]:
            if process is not None:
                process.kill()
                process.wait()
