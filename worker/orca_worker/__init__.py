"""A worker: one controller process (gRPC, no torch) and one process per tensor-parallel rank."""

import os

import orca_protos.grpc_environment  # noqa: F401  (before gRPC)

# gRPC reads this on import. By default each failed TLS handshake logs a line, so any client could fill the log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
