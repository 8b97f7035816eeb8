"""A worker's gRPC server with certificates, in a separate process, so that its crash does not end the tests.

`python door_server.py FOLDER` prints its port. Silent connections are closed after 0.3 s.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import grpc.aio
from orca_protos.engine_pb2_grpc import add_WorkerServicer_to_server
from orca_protos.tls import TlsFolder
from orca_protos.wire import SERVER_OPTIONS
from orca_worker.controller import Controller
from orca_worker.door import Door

HANDSHAKE_MS = 300


async def serve(folder: Path) -> None:
    """Serve until the process is killed."""
    tls = TlsFolder(folder, "worker")
    options = {**dict(SERVER_OPTIONS), "grpc.server_handshake_timeout_ms": HANDSHAKE_MS}
    server = grpc.aio.server(options=list(options.items()), interceptors=[Door(tls)])
    add_WorkerServicer_to_server(Controller(("false",), tls=tls), server)  # type: ignore[no-untyped-call]
    port = server.add_secure_port("127.0.0.1:0", tls.server_credentials())
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
