"""A worker: one controller process (gRPC, no torch) and one rank process per intra-layer partition."""

import os

# gRPC reads it when it is imported. Without it every handshake that fails is a line, so a stranger could fill the log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
