"""`orca drain`: the preStop hook of a master pod: takes no new requests, waits for those under way, within a bound.

The pod is taken out of its Service while this lingers, so that no request arrives at a master that refuses it.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from orca_master.cli import OneLineParser
from orca_master.options import port, positive

LINGER_SECONDS = 2.0
POLL_SECONDS = 0.2
CALL_SECONDS = 5.0


def main(argv: list[str]) -> int:
    """`orca drain`: exit code 0 when drained, 1 when the bound was reached or the master does not answer."""
    parser = OneLineParser(prog="orca drain", description="Lets a master on this host finish what runs.")
    parser.add_argument("--admin-port", type=port, required=True, help="the master's admin port")
    parser.add_argument("--admin-token-file", type=Path, required=True, metavar="FILE", help="its bearer token")
    parser.add_argument("--timeout", type=positive, default=30, metavar="SECONDS", help="longest wait (30)")
    arguments = parser.parse_args(argv)
    deadline = time.monotonic() + arguments.timeout
    time.sleep(min(LINGER_SECONDS, arguments.timeout))
    try:
        token = arguments.admin_token_file.read_text(encoding="utf-8").strip()
        state = _call(arguments.admin_port, "/drain", "POST", token)
        while not state["idle"] and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            state = _call(arguments.admin_port, "/state", "GET", token)
    except (OSError, ValueError) as error:
        print(f"orca drain: {error}", file=sys.stderr)
        return 1
    return 0 if state["idle"] else 1


def _call(admin_port: int, path: str, method: str, token: str) -> dict[str, object]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{admin_port}{path}", method=method, headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:
        state: dict[str, object] = json.load(answer)
        return state
