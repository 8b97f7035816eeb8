"""Measures the effect of one large request: the maximum latency of /livez, the master's memory, and the response.

    python benchmarks/big_requests.py [MODEL] [--mebibytes 64] [--only NAME ...] [-- OPTIONS OF orca serve]

Starts `orca serve MODEL` (default: the demo model) and sends requests of many kinds one after another, each of about
`--mebibytes`. Meanwhile another process requests /livez every 5 ms, and reads the resident memory of the server's
process without its children. Without the option `--max-body-bytes` the server refuses bodies above its default limit.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import re
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from orca_bench.processes import processes
from orca_bench.servers import serve

ROOT = Path(__file__).parents[1]
VALID_BODY = b'{"prompt": [1], "max_tokens": 1}'


def kinds(size: int) -> dict[str, tuple[str, Callable[[], bytes]]]:
    """Return route and body of each kind of request, with bodies of about `size` bytes."""
    completion, chat = "/v1/completions", "/v1/chat/completions"

    def repeated(before: bytes, unit: bytes, after: bytes) -> Callable[[], bytes]:
        return lambda: before + unit * ((size - len(before) - len(after)) // len(unit) - 1) + unit.rstrip(b",") + after

    many = {
        "empty arrays": (completion, repeated(b'{"prompt":[', b"[],", b"]}")),
        "empty objects": (completion, repeated(b'{"user":[', b"{},", b'],"prompt":"a"}')),
        "deep arrays": (completion, lambda: b"[" * size),
        "deep objects": (completion, repeated(b'{"prompt":', b'{"a":', b"}")),
        "token ids": (completion, repeated(b'{"prompt":[', b"1000,", b"]}")),
        "prompts of token ids": (completion, repeated(b'{"prompt":[', b"[" + b"300," * 100 + b"300],", b"]}")),
        "1024 prompts": (completion, lambda: _prompts(size)),
        "wrong token ids": (completion, repeated(b'{"prompt":[', b"-1,", b"]}")),
        "one string": (completion, repeated(b'{"prompt":"', b"abcd ", b'"}')),
        "string of spaces": (completion, repeated(b'{"prompt":"', b" ", b'"}')),
        "escapes": (completion, repeated(b'{"prompt":"', b"\\u00e9", b'"}')),
        "emoji": (completion, repeated(b'{"prompt":"', "😀".encode(), b'"}')),
        "many keys": (completion, lambda: _keys(size)),
        "logit_bias": (completion, lambda: b'{"prompt":"a","logit_bias":' + _keys(size) + b"}"),
        "messages": (chat, repeated(b'{"messages":[', b'{"role":"user","content":"a"},', b"]}")),
        "one message": (chat, repeated(b'{"messages":[{"role":"user","content":"', b"abcd ", b'"}]}')),
        "long number": (completion, repeated(b'{"prompt":', b"9", b"}")),
        "no JSON": (completion, lambda: b"\0" * size),
        "tokenize": ("/tokenize", repeated(b'{"prompt":"', b"abcd ", b'"}')),
        "detokenize": ("/detokenize", repeated(b'{"tokens":[', b"300,", b"]}")),
    }
    small = {
        "1 Mi characters": (completion, lambda: b'{"prompt":"' + b"abcd " * 209_000 + b'"}'),
        "1 Mi characters to /tokenize": ("/tokenize", lambda: b'{"prompt":"' + b"abcd " * 209_000 + b'"}'),
        "1 Mi emoji to /tokenize": ("/tokenize", lambda: b'{"prompt":"' + "😀".encode() * 1_000_000 + b'"}'),
        "1 Mi spaces to /tokenize": ("/tokenize", lambda: b'{"prompt":"' + b" " * 1_000_000 + b'"}'),
        "4096 messages": (
            chat,
            lambda: b'{"messages":[' + b",".join([b'{"role":"user","content":"a"}'] * 4096) + b"]}",
        ),
        "1024 x 128": (completion, lambda: json.dumps({"prompt": ["a"] * 1024, "n": 128, "max_tokens": 1}).encode()),
        "1024 x 4": (completion, lambda: json.dumps({"prompt": ["a"] * 1024, "n": 4, "max_tokens": 1}).encode()),
        "32 x 128": (completion, lambda: json.dumps({"prompt": [[5] * 100] * 32, "n": 128, "max_tokens": 1}).encode()),
        "echo, 32 x 128": (
            completion,
            lambda: json.dumps(
                {"prompt": ["a b c " * 30] * 32, "n": 128, "max_tokens": 1, "echo": True, "return_token_ids": True}
            ).encode(),
        ),
    }
    return many | small


def _prompts(size: int) -> bytes:
    one = b"[" + b",".join([b"1000"] * (size // 1024 // 5 - 1)) + b"]"
    return b'{"prompt":[' + b",".join([one] * 1024) + b"]}"


def _keys(size: int) -> bytes:
    return b"{" + b",".join(b'"%d":1' % number for number in range(size // 11)) + b"}"


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1])  # type: ignore[index]


def ask_livez(host: str, port: int) -> None:
    """Request /livez on a new connection."""
    connection = http.client.HTTPConnection(host, port, timeout=300)
    connection.request("GET", "/livez")
    connection.getresponse().read()
    connection.close()


def watch(host: str, port: int, pid: int, results: Connection) -> None:
    """Request /livez until a message arrives; send the maximum latency in seconds and the maximum memory in bytes.

    Sends a message after the first response.
    """
    ask_livez(host, port)
    results.send(None)
    longest, largest = 0.0, 0
    while not results.poll(0.005):
        began = time.perf_counter()
        ask_livez(host, port)
        longest = max(longest, time.perf_counter() - began)
        largest = max(largest, resident(pid))
    results.send((longest, largest))


def ask(host: str, port: int, route: str, body: bytes) -> str:
    """Send a request; return the status and the beginning of its error message, or the connection error."""
    connection = http.client.HTTPConnection(host, port, timeout=600)
    try:
        connection.request("POST", route, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    except OSError as error:
        return f"no answer: {error}"
    finally:
        connection.close()
    try:
        return f"{answer.status} {json.loads(text)['error']['message'][:70]}"
    except (ValueError, KeyError):
        return f"{answer.status}, {len(text)} bytes"


def main() -> None:
    """Print a table."""
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        separator = arguments.index("--")
        arguments, options = arguments[:separator], arguments[separator + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=str(ROOT / "examples" / "demo-model"))
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--only", nargs="+", help="names of the kinds to send")
    settings = parser.parse_args(arguments)
    chosen = kinds(settings.mebibytes << 20)
    print(f"{'request':>30} {'MiB':>5} {'livez ms':>8} {'+MiB':>6} {'s':>6}  answer", flush=True)
    with serve(Path(settings.model), options) as (server, url):
        parts, pid = urlsplit(url), processes(server.pid)["master"]
        host, port = str(parts.hostname), int(parts.port or 0)
        for name, (route, make) in chosen.items():
            if settings.only and name not in settings.only:
                continue
            body = make()
            ask(host, port, "/v1/completions", VALID_BODY)
            before = resident(pid)
            here, there = multiprocessing.Pipe()
            watcher = multiprocessing.get_context("spawn").Process(target=watch, args=(host, port, pid, there))
            watcher.start()
            here.recv()
            began = time.perf_counter()
            answer = ask(host, port, route, body)
            seconds = time.perf_counter() - began
            here.send(None)
            longest, largest = here.recv()
            watcher.join()
            print(
                f"{name:>30} {len(body) / 2**20:5.1f} {1000 * longest:8.0f} {(largest - before) / 2**20:6.0f} "
                f"{seconds:6.2f}  {answer}",
                flush=True,
            )


if __name__ == "__main__":
    main()
