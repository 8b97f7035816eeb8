"""`orca drain` beside a port that is not a master's: one line and exit code 1."""

from __future__ import annotations

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
