"""A worker: one controller process (gRPC, no torch) and one rank process per intra-layer partition."""

import os

# gRPC reads this on import. Otherwise every failed TLS handshake logs a line, so that strangers could fill the log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
