"""A server with the part of the hub's protocol that `orca fetch` uses, for one repository."""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.certificates import sign

COMMIT = "c0ffee" + "0" * 34
REPOSITORY = "acme/tiny"


class Hub:
    """One repository; records downloads, and can break connections and damage files."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.files: dict[str, bytes] = {}
        self.sent: list[tuple[str, int]] = []
        self.stall_after: dict[str, int] = {}
        self.stalled = threading.Event()
        self.damaged: dict[str, int] = {}
        self.without_digest: set[str] = set()
        self.sizes: dict[str, int] = {}
        self.token = ""
        self.commit = COMMIT
        self.signature = ""
        """If set, large files are redirected to a URL with this query; "refused" is a signature that is refused."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

        self.server = ThreadingHTTPServer((host, 0), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def secure(self, folder: Path) -> Path:
        """Serve HTTPS from now on, as localhost; return the file with the certificate of the private authority."""
        authority = sign()
        signed = sign("localhost", issuer=authority)
        for name, content in {"ca.pem": authority.pem, "tls.crt": signed.pem, "tls.key": signed.key_pem}.items():
            (folder / name).write_bytes(content)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://localhost:{self.port}"
        return folder / "ca.pem"

    def etag(self, name: str) -> str:
        content = self.files[name]
        if name.endswith(".safetensors"):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def answer(self, handler: BaseHTTPRequestHandler, body: bool) -> None:
        path = handler.path.partition("?")[0]
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return self.refuse(handler, 401, "RepoNotFound")
        if found := re.fullmatch(rf"/api/models/{REPOSITORY}/revision/(.+)", path):
            if found[1] not in ("main", self.commit):
                return self.refuse(handler, 404, "RevisionNotFound")
            siblings = []
            for name, content in self.files.items():
                sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": self.etag(name)}
                if name.endswith(".safetensors"):
                    sibling["lfs"] = {"sha256": self.etag(name), "size": len(content), "pointerSize": 130}
                if name in self.without_digest:
                    del sibling["blobId"]
                sibling["size"] = self.sizes.get(name, sibling["size"])
                siblings.append(sibling)
            return self.send(
                handler, json.dumps({"id": REPOSITORY, "sha": self.commit, "siblings": siblings}).encode(), {}
            )
        if found := re.fullmatch(rf"(/storage|/{REPOSITORY}/resolve/{self.commit})/(.+)", path):
            return self.answer_file(handler, found[2], body, is_redirected=found[1] == "/storage")
        return self.refuse(handler, 404, "RepoNotFound")

    def answer_file(self, handler: BaseHTTPRequestHandler, name: str, body: bool, is_redirected: bool) -> None:
        if is_redirected and self.signature == "refused":
            self.send(handler, b"", {}, status=403)
        elif self.signature and name.endswith(".safetensors") and not is_redirected:
            self.redirect(handler, name)
        else:
            self.send_file(handler, name, body)

    def redirect(self, handler: BaseHTTPRequestHandler, name: str) -> None:
        headers = {
            "Location": f"{self.url}/storage/{name}?X-Signature={self.signature}", "X-Repo-Commit": self.commit,
            "X-Linked-Size": str(len(self.files[name])), "X-Linked-ETag": f'"{self.etag(name)}"',
        }  # fmt: skip
        self.send(handler, b"", headers, status=302)

    def send_file(self, handler: BaseHTTPRequestHandler, name: str, body: bool) -> None:
        content = self.files[name]
        headers = {"ETag": f'"{self.etag(name)}"', "X-Repo-Commit": self.commit, "Accept-Ranges": "bytes"}
        if not body:
            return self.send(handler, content, headers, body=False)
        if self.damaged.get(name, 0):
            self.damaged[name] -= 1
            content = bytes(len(content))
        start = 0
        if found := re.match(r"bytes=(\d+)-", handler.headers.get("Range", "")):
            start = int(found[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.sent.append((name, start))
        if name in self.stall_after:
            handler.send_response(200)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                handler.send_header(key, value)
            handler.end_headers()
            handler.wfile.write(content[: self.stall_after.pop(name)])
            handler.wfile.flush()
            self.stalled.set()
            handler.rfile.read(1)  # until the client disconnects
            return None
        return self.send(handler, content[start:], headers, status=206 if start else 200)

    @staticmethod
    def send(
        handler: BaseHTTPRequestHandler, content: bytes, headers: dict[str, str], body: bool = True, status: int = 200
    ) -> None:
        handler.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            handler.send_header(key, value)
        handler.end_headers()
        if body:
            handler.wfile.write(content)

    @staticmethod
    def refuse(handler: BaseHTTPRequestHandler, status: int, code: str) -> None:
        Hub.send(handler, b"{}", {"X-Error-Code": code, "X-Error-Message": code}, status=status)
