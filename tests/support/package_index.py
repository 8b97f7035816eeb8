"""Empty wheels, a package index on 127.0.0.1, and the environment of a user without pip settings."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from zipfile import ZipFile

KEPT = (
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""Environment variables that a network may require: certificates and proxies."""


def bare_environment(home: Path) -> dict[str, str]:
    """Return the environment of a user without settings of pip and uv: public registry, empty home and cache."""
    kept = {name: os.environ[name] for name in KEPT if os.environ.get(name)}
    settings = {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}
    return {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), **settings, **kept}


def make_wheel(folder: Path, name: str, version: str, requires: Sequence[str] = ()) -> Path:
    """Write a wheel for every Python and platform, with an empty module and metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    path = folder / f"{module}-{version}-py3-none-any.whl"
    info = f"{module}-{version}.dist-info"
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    with ZipFile(path, "w") as wheel:
        wheel.writestr(f"{module}/__init__.py", "")
        wheel.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serve_index(folder: Path) -> Iterator[str]:
    """Serve `folder` as an index (PEP 503): FOLDER/NAME/*.whl are the wheels of NAME. Yield the index's URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
