"""`orca drain`: how long it waits; beside a port that is not a master's, one line and exit code 1."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from orca_master.commands import drain


@pytest.fixture
def stranger(request: pytest.FixtureRequest) -> Iterator[int]:
    """Yield the port of a server that answers everything with the test's parameter."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(request.param)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("stranger", [b"[]", b"{}", b'{"idle": 1}', b"hello"], indirect=True)
def test_an_answer_that_is_no_masters(stranger, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(drain, "LINGER_SECONDS", 0)
    token = tmp_path / "token"
    token.write_text("secret")
    assert drain.main(["--admin-port", str(stranger), "--admin-token-file", str(token)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("orca drain: ")


def test_a_port_with_tls_is_not_asked_without(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(drain, "LINGER_SECONDS", 0)
    token = tmp_path / "token"
    token.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)

        thread = threading.Thread(target=close)
        thread.start()
        port = listener.getsockname()[1]
        assert drain.main(["--admin-port", str(port), "--admin-token-file", str(token)]) == 1
        thread.join()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("a master with --tls-dir needs --tls-dir here, too")


@pytest.mark.parametrize(
    ("stranger", "seconds"),
    [
        (json.dumps({"idle": False, "inForce": in_force}).encode(), seconds)
        for in_force, seconds in [
            ({"drainTimeoutSeconds": 7}, 7),
            ({"drainTimeoutSeconds": 90}, 20),
            ({}, 20),
            (None, 20),
        ]
    ],
    indirect=["stranger"],
)
def test_the_shorter_of_option_and_master_bounds_the_wait(stranger, seconds, tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(drain.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(drain.time, "sleep", lambda slept: clock.append(clock.pop() + slept))
    token = tmp_path / "token"
    token.write_text("secret")
    command = ["--admin-port", str(stranger), "--admin-token-file", str(token), "--timeout", "20"]
    assert drain.main(command) == 1
    assert seconds <= clock[0] <= seconds + drain.POLL_SECONDS


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        (b"", "it is empty"),
        (b"\xff", "it is not UTF-8"),
        (b"a\nb", "it may only have"),
    ],
)
def test_a_file_without_a_token(content, words, tmp_path, monkeypatch, capsys):
    """The path has a line break; the error is one line, before the wait for other parts of the cluster."""
    monkeypatch.setattr(drain.time, "sleep", None)
    token = tmp_path / "a\nb"
    if content is not None:
        token.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        drain.main(["--admin-port", "1", "--admin-token-file", str(token)])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"orca drain: error: --admin-token-file {tmp_path}/a\\nb: {words}")
