"""`orca drain`: the preStop hook of a master pod: refuses new requests and waits for running requests, with a timeout.

The command first waits LINGER_SECONDS for Kubernetes to remove the pod from its Service, so that no new request
arrives at a draining master.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from orca_contract import routes
from orca_protos.command_line import OneLineParser, one_line, port
from orca_protos.tls import Certificates, TlsError, TlsFolder

from orca_master.commands.argument_types import positive
from orca_master.endpoint.admin_token import read_token
from orca_master.errors import ConfigurationError

LINGER_SECONDS = 2.0
POLL_SECONDS = 0.2
CALL_SECONDS = 5.0


def main(argv: list[str]) -> int:
    """Run `orca drain`: exit code 0 when drained, 1 on timeout or if the master does not answer, 2 without a token."""
    parser = OneLineParser(
        prog="orca drain", description="Makes a master on this host refuse new requests, and waits until it is idle."
    )
    parser.add_argument("--admin-port", type=port, required=True, help="the master's admin port")
    parser.add_argument(
        "--admin-token-file", type=Path, required=True, metavar="FILE", help="bearer token of the admin port"
    )
    parser.add_argument("--tls-dir", type=Path, metavar="DIR", help="the master's certificates, if it uses TLS")
    parser.add_argument(
        "--timeout",
        type=positive,
        default=30,
        metavar="SECONDS",
        help="maximum wait, if that of the master is not shorter (30)",
    )
    arguments = parser.parse_args(argv)
    try:
        tls = TlsFolder(arguments.tls_dir, "master").current() if arguments.tls_dir else None
        token = read_token(arguments.admin_token_file)
    except (TlsError, ConfigurationError) as error:
        parser.error(str(error))
    begin = time.monotonic()
    time.sleep(min(LINGER_SECONDS, arguments.timeout))
    try:
        state = _call(arguments.admin_port, routes.DRAIN, "POST", token, tls)
        while not state["idle"] and time.monotonic() < begin + min(arguments.timeout, _drain_timeout(state)):
            time.sleep(POLL_SECONDS)
            state = _call(arguments.admin_port, routes.STATE, "GET", token, tls)
    except (OSError, ValueError, http.client.HTTPException) as error:
        # A port with TLS closes a connection without.
        closed = tls is None and isinstance(error, ConnectionResetError)
        remedy = "; a master with --tls-dir needs --tls-dir here, too" if closed else ""
        print(f"orca drain: {one_line(str(error))}{remedy}", file=sys.stderr)
        return 1
    return 0 if state["idle"] else 1


def _drain_timeout(state: Mapping[str, object]) -> float:
    """Return the drain timeout in force in seconds; infinite for a master that does not report it."""
    in_force = state.get("inForce")
    seconds = in_force.get("drainTimeoutSeconds") if isinstance(in_force, dict) else None
    return float(seconds) if isinstance(seconds, int | float) else math.inf


def _call(admin_port: int, path: str, method: str, token: str, tls: Certificates | None) -> dict[str, object]:
    """Return the master's state; raise OSError, HTTPException, or ValueError for an unexpected response."""
    connection = http.client.HTTPConnection("127.0.0.1", admin_port, timeout=CALL_SECONDS)
    with contextlib.closing(connection):
        connection.connect()
        if tls is not None:
            context = tls.client_context()
            connection.sock = context.wrap_socket(connection.sock, server_hostname=f"master.{tls.identity}")
        connection.request(method, path, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        body = response.read()
    if response.status >= 400:
        raise ValueError(f"{path}: {response.status} {body[:300].decode(errors='replace')}")
    state = json.loads(body)
    if not isinstance(state, dict) or not isinstance(state.get("idle"), bool):
        raise ValueError(f"{path}: the response is not a master's state: check --admin-port {admin_port}")
    return state
